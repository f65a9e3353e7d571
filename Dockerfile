# syntax=docker/dockerfile:1
#
#   docker build --target operator -t holdfast/operator:0.1.0 .
#   docker build --target trainer  -t holdfast/trainer:0.1.0 .
#
# Both images install from uv.lock alone: no version is chosen at build time. The operator image contains no JAX. The trainer
# image contains neither Kopf nor a Kubernetes client.

# The Python version that the tests run on, and the uv version that the lock file pins.
ARG PYTHON_VERSION=3.11
ARG UV_VERSION=0.13.8

FROM ghcr.io/astral-sh/uv:${UV_VERSION} AS uv

FROM python:${PYTHON_VERSION}-slim-bookworm AS base
# Unbuffered: the log contains the last lines of a killed process. No bytecode: the root file system is read-only.
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp

FROM base AS build
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_PROJECT_ENVIRONMENT=/opt/holdfast \
    UV_PYTHON_DOWNLOADS=never \
    UV_PYTHON=/usr/local/bin/python \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_CACHE_DIR=/var/cache/uv
WORKDIR /src
COPY pyproject.toml uv.lock ./

# Dependencies first: a change of our own code reuses the layer with the dependencies.
FROM build AS operator-build
RUN --mount=type=cache,target=/var/cache/uv \
    uv sync --locked --no-default-groups --extra operator --no-install-project
COPY README.md LICENSE ./
COPY operator operator
COPY trainer_lib trainer_lib
RUN --mount=type=cache,target=/var/cache/uv \
    uv sync --locked --no-default-groups --extra operator --no-editable

FROM build AS trainer-build
RUN --mount=type=cache,target=/var/cache/uv \
    uv sync --locked --no-default-groups --extra trainer --no-install-project
COPY README.md LICENSE ./
COPY operator operator
COPY trainer_lib trainer_lib
RUN --mount=type=cache,target=/var/cache/uv \
    uv sync --locked --no-default-groups --extra trainer --no-editable
# The plugin of an accelerator (cuda13, tpu, ...) for the locked JAX. Only this step resolves versions outside uv.lock.
ARG JAX_EXTRA=""
RUN --mount=type=cache,target=/var/cache/uv \
    if [ -n "${JAX_EXTRA}" ]; then \
      version="$(/opt/holdfast/bin/python -c 'import importlib.metadata as m; print(m.version("jax"))')" && \
      uv pip install --python /opt/holdfast/bin/python "jax[${JAX_EXTRA}]==${version}"; \
    fi

FROM base AS operator
LABEL org.opencontainers.image.title="Holdfast operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-build /opt/holdfast /opt/holdfast
USER 65532:65532
# Control endpoint, metrics, health.
EXPOSE 8443 9090 8080
CMD ["python", "-m", "holdfast_operator"]

# A base for training images: start FROM it, and add the script and its requirements. A TrainingJob names the command, and
# the operator runs the agent in front of it. So this image has no entry point.
FROM base AS trainer
LABEL org.opencontainers.image.title="Holdfast trainer" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=trainer-build /opt/holdfast /opt/holdfast
USER 65532:65532
WORKDIR /tmp
CMD ["python", "-c", "import holdfast, jax; print('holdfast with jax', jax.__version__, jax.devices())"]
