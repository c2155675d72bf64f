# syntax=docker/dockerfile:1
#
#   docker build --tag asynclane:gpu .                                               GPU node (CUDA build of torch)
#   docker build --tag asynclane:cpu --target cpu --build-arg TORCH_INDEX=URL .      laptop
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

# In an environment of its own, so that it does not list itself.
FROM python:${PYTHON}-slim AS sbom
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/sbom && /opt/sbom/bin/pip install cyclonedx-bom==7.5.0

FROM build AS build-cpu
ARG TORCH_INDEX
RUN --mount=type=cache,target=/root/.cache/pip \
    test -n "${TORCH_INDEX}" || { echo "--target cpu needs --build-arg TORCH_INDEX=URL (see the Dockerfile)"; exit 1; } \
    && pip install --no-deps --index-url "${TORCH_INDEX}" "$(grep '^torch==' constraints.txt)"
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt '.[otel]'
RUN --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /opt/asynclane/sbom.cdx.json /opt/asynclane

FROM build AS build-gpu
# torch first: a change of the code does not download it again.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt torch
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt '.[gpu,otel]'
RUN --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    /opt/sbom/bin/cyclonedx-py environment --output-reproducible --output-file /opt/asynclane/sbom.cdx.json /opt/asynclane

FROM python:${PYTHON}-slim AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title=asynclane \
      org.opencontainers.image.description="An inference server for diffusion language models" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION}
RUN groupadd --gid 10001 asynclane && useradd --uid 10001 --gid 10001 --create-home asynclane \
    && install --directory --owner 10001 --group 10001 /cache && mkdir /models
# All that is written goes to /cache and /tmp, so that the root may be read-only. Checkpoints are mounted at /models, as
# folders or as a home of Hugging Face.
ENV PATH=/opt/asynclane/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ASYNCLANE_HOST=0.0.0.0 \
    HF_HOME=/models \
    TRITON_CACHE_DIR=/cache/triton
VOLUME /cache
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
CMD ["serve"]

FROM runtime AS cpu
COPY --from=build-cpu /opt/asynclane /opt/asynclane
USER 10001:10001

# The default target is the last stage.
FROM runtime AS gpu
# Triton builds the host side of its kernels at the first start.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build-gpu /opt/asynclane /opt/asynclane
USER 10001:10001
