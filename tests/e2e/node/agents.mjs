// Agents in OpenAI's client for Node and in Vercel's AI SDK: each case asks in all ways, and prints what came as one
// line of JSON. node agents.mjs URL CASE
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodFunction, zodResponsesFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const server = { baseURL: `${url}/v1`, apiKey: "none" };
const model = "tiny-chat";
const question = "What is the weather in Paris?";
const Place = z.object({ city: z.string() });
const Answer = z.object({ item: z.enum(["books", "eggs"]), count: z.int().min(0).max(99) });
const Report = z.object({ degrees: z.int().min(0).max(99) });
const eggs = "Tom has 12 eggs.";
const weather = { name: "get_weather", description: "Get the weather in a city", parameters: Place };
const result = () => '{"temperature": 21}';

async function openai() {
  const client = new OpenAI({ ...server, maxRetries: 0, timeout: 60_000 });
  const messages = [{ role: "user", content: question }];
  const calls = [];
  const tools = [zodFunction({ ...weather, function: (place) => { calls.push(place); return result(); } })];
  const chats = { model, messages, tools, max_tokens: 96 };
  const loop = await client.chat.completions.runTools(chats).finalContent();
  const streamed = await client.chat.completions.runTools({ ...chats, stream: true }).finalContent();
  const format = zodResponseFormat(Answer, "answer");
  const asked = [{ role: "user", content: eggs }];
  const parsed = await client.chat.completions.parse({ model, messages: asked, response_format: format, max_tokens: 60 });

  const functions = { model, tools: [zodResponsesFunction(weather)], max_output_tokens: 96 };
  const turn = async (answer) => {
    const first = await answer({ ...functions, input: messages });
    const [call] = first.output;
    const output = { type: "function_call_output", call_id: call.call_id, output: result() };
    const { parsed_arguments: place, ...sent } = call;
    const second = await answer({ ...functions, input: [...messages, sent, output] });
    return { place, text: second.output_text };
  };
  const text = { format: zodTextFormat(Answer, "answer") };
  const formatted = await client.responses.parse({ model, input: eggs, text, max_output_tokens: 60 });
  return {
    chat: { calls, loop, streamed, parsed: parsed.choices[0].message.parsed },
    responses: {
      whole: await turn((body) => client.responses.parse(body)),
      streamed: await turn((body) => client.responses.stream(body).finalResponse()),
      parsed: formatted.output_parsed,
    },
  };
}

async function ai() {
  const openai = createOpenAI(server);
  const compatible = createOpenAICompatible({
    ...server, name: "asynclane", includeUsage: true, supportsStructuredOutputs: true,
  });
  const tools = {
    [weather.name]: tool({ description: weather.description, inputSchema: Place, execute: result }),
  };
  const found = {};
  for (const [kind, one] of Object.entries({ responses: openai(model), compatible: compatible(model) })) {
    const asked = { model: one, prompt: question, tools, stopWhen: stepCountIs(3), maxOutputTokens: 96, maxRetries: 0 };
    const whole = await generateText(asked);
    const stream = streamText(asked);
    const told = ({ steps, text, finishReason, usage }) => ({
      calls: steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input])),
      text, finish: finishReason, tokens: usage.outputTokens,
    });
    const streamed = { steps: await stream.steps, text: await stream.text };
    Object.assign(streamed, { finishReason: await stream.finishReason, usage: await stream.usage });
    const formatted = { model: one, schema: Answer, prompt: eggs, maxOutputTokens: 60, maxRetries: 0 };
    const both = await generateText({ ...asked, output: Output.object({ schema: Report }) });
    found[kind] = {
      whole: told(whole), streamed: told(streamed), object: (await generateObject(formatted)).object, both: both.output,
    };
  }
  return found;
}

console.log(JSON.stringify(await { openai, ai }[name]()));
