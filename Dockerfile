# syntax=docker/dockerfile:1
#
#   docker build -t asynclane .                                                  GPU node (CUDA build of torch)
#   docker build -t asynclane:cpu --target cpu --build-arg TORCH_INDEX=URL .     laptop
#
# TORCH_INDEX is the address of a package index that serves CPU wheels of torch (PyTorch publishes one, a mirror
# will do). Only torch is taken from it. BuildKit builds no more than the target needs.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/asynclane
ENV PATH=/opt/asynclane/bin:$PATH
WORKDIR /src
COPY pyproject.toml constraints.txt ./

FROM build AS build-cpu
ARG TORCH_INDEX
RUN --mount=type=cache,target=/root/.cache/pip \
    test -n "${TORCH_INDEX}" || { echo "--target cpu needs --build-arg TORCH_INDEX=URL (see the Dockerfile)"; exit 1; } \
    && pip install --no-deps --index-url "${TORCH_INDEX}" "$(grep '^torch==' constraints.txt)"
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt .

FROM build AS build-gpu
# torch first: a change of the code does not download it again.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt torch
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt '.[gpu]'

FROM python:${PYTHON}-slim AS runtime
RUN useradd --uid 10001 --create-home asynclane
ENV PATH=/opt/asynclane/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /home/asynclane
EXPOSE 8000
# /health says that the process lives and its engine has not failed; loading a large model may take minutes before that.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 CMD ["python", "-c", "\
import http.client, os; \
port = int(os.environ.get('ASYNCLANE_PORT', '8000')); \
connection = http.client.HTTPConnection('127.0.0.1', port, timeout=4); \
connection.request('GET', '/health'); \
raise SystemExit(connection.getresponse().status != 200)"]
# Exec form: SIGTERM reaches the server, which drains.
ENTRYPOINT ["asynclane"]
CMD ["serve", "--host", "0.0.0.0"]

FROM runtime AS cpu
COPY --from=build-cpu /opt/asynclane /opt/asynclane
USER 10001

# The default target is the last stage.
FROM runtime AS gpu
# Triton builds the host side of its kernels at the first start.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build-gpu /opt/asynclane /opt/asynclane
USER 10001
