"""The application that `serve run` and config files of Ray Serve name."""

from __future__ import annotations

from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from ...server.http.keys import BadKeys, Keys
from ...server.settings import Settings
from .arguments import POSITIONS, BadArgument, read_arguments
from .replica import Replica
from .router import Router

NAME = "asynclane"
SPARE_REQUESTS = 64  # more than the engine takes: it refuses them itself, in OpenAI's format
STATS_S = 1.0
HEALTH_S = 2.0
STOP_S = 10.0  # for the engine, when the last stream has ended


def app(args: dict[str, Any]) -> serve.Application:
    """The application of some arguments. Raises `BadArgument`."""
    arguments = read_arguments(args)
    replicas, settings = arguments.replicas, arguments.settings
    if not ray.is_initialized():  # by `serve run` on this machine, and not for a cluster, which has models elsewhere
        check_keys(settings)
        check_model(settings.model)
    options: dict[str, Any] = {"num_replicas": replicas.num_replicas}
    if replicas.max_replicas is not None:
        options = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=replicas.num_replicas,
                max_replicas=replicas.max_replicas,
                target_ongoing_requests=replicas.target_requests or settings.max_num_seqs,
            )
        }
    if replicas.routing == POSITIONS:
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=f"{Router.__module__}:{Router.__name__}", request_routing_stats_period_s=STATS_S
        )
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus},
        max_ongoing_requests=settings.max_num_seqs + settings.max_queue + SPARE_REQUESTS,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=settings.drain_s + STOP_S,
        health_check_period_s=HEALTH_S,
        **options,
    )
    return deployment.bind(arguments.given)


def check_keys(settings: Settings) -> None:
    """Raises `BadArgument` for a file of keys that this machine cannot use."""
    try:
        Keys.of(settings)
    except BadKeys as error:
        raise BadArgument(str(error)) from None


def check_model(model: str) -> None:
    """Raises `BadArgument` for a model that this machine cannot load. Ray would report the failure of a replica after
    minutes, and at length."""
    from ...server.engine.wiring import open_checkpoint  # it imports torch

    try:
        open_checkpoint(model)
    except (ValueError, OSError) as error:
        raise BadArgument(" ".join(str(error).split())) from None
