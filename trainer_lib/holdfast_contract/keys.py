"""Names: the API group, labels, environment variables, ports, mount paths and file names."""

from __future__ import annotations

from typing import Final

# The API. Written into the CRD by its generator; read by everyone who talks to the API server.
API_GROUP: Final = "holdfast.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{API_GROUP}/{VERSION}"
KIND: Final = "TrainingJob"
PLURAL: Final = "trainingjobs"
SINGULAR: Final = "trainingjob"
SHORT_NAME: Final = "tj"
CRD_NAME: Final = f"{PLURAL}.{API_GROUP}"

# Labels of every object that the operator creates for a job; written by the operator and read by it in live LISTs.
LABEL_JOB_NAME: Final = f"{API_GROUP}/job-name"
LABEL_JOB_UID: Final = f"{API_GROUP}/job-uid"
LABEL_REPLICA_INDEX: Final = f"{API_GROUP}/replica-index"
# The attempt in which this pod was created. A pod that restarts in place serves later attempts, too.
LABEL_CREATED_IN_ATTEMPT: Final = f"{API_GROUP}/created-in-attempt"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "holdfast"

# Finalizer on a TrainingJob until its workers have saved and stopped; written and removed by the operator.
FINALIZER: Final = f"{API_GROUP}/orderly-end"

# The container of the pod template that runs the training process, and what the operator adds to it.
TRAINER_CONTAINER: Final = "trainer"
AGENT_MODULE: Final = "holdfast_agent"  # the operator puts `python -m holdfast_agent --` in front of the user's command
RUNTIME_VOLUME: Final = "holdfast-runtime"  # emptyDir: the unix socket, the compile cache of this pod
RUNTIME_MOUNT: Final = "/var/run/holdfast"
TOKEN_VOLUME: Final = "holdfast-token"  # noqa: S105  a volume: the projected token for the control endpoint only
TOKEN_MOUNT: Final = "/var/run/secrets/holdfast.dev"  # noqa: S105  a path, not a token
TOKEN_FILE_NAME: Final = "token"  # noqa: S105  a file name, not a token
TOKEN_AUDIENCE: Final = "holdfast.dev/control"  # noqa: S105  asked for in the projection, demanded by TokenReview
TOKEN_EXPIRATION_SECONDS: Final = 3600

# Environment. The CRD refuses a template that sets a name with this prefix.
ENV_PREFIX: Final = "HOLDFAST_"
# Written by the operator into the pod, read by the agent.
ENV_REPLICA_INDEX: Final = "HOLDFAST_REPLICA_INDEX"
ENV_CONTROL_URL: Final = "HOLDFAST_CONTROL_URL"  # https://<service>.<namespace>.svc:<port>
ENV_CONTROL_CA: Final = "HOLDFAST_CONTROL_CA"  # PEM bundle, the certificates themselves
ENV_TOKEN_FILE: Final = "HOLDFAST_TOKEN_FILE"  # noqa: S105  a path, not a token
ENV_GRACE_SECONDS: Final = "HOLDFAST_GRACE_SECONDS"  # the pod's terminationGracePeriodSeconds
ENV_ORPHAN_SECONDS: Final = "HOLDFAST_ORPHAN_SECONDS"  # see defaults.ORPHAN_SECONDS
ENV_HANG_STEP_SECONDS: Final = "HOLDFAST_HANG_STEP_SECONDS"  # spec.hang.stepSeconds; absent: no limit
ENV_HANG_START_SECONDS: Final = "HOLDFAST_HANG_START_SECONDS"  # spec.hang.startSeconds; absent: no limit
ENV_TERMINATION_LOG: Final = "HOLDFAST_TERMINATION_LOG"  # the container's terminationMessagePath, if not the default
TERMINATION_LOG: Final = "/dev/termination-log"  # the default terminationMessagePath of Kubernetes
# Written by the operator into the pod, passed through by the agent, read by the library.
ENV_JOB_NAME: Final = "HOLDFAST_JOB_NAME"
ENV_JOB_NAMESPACE: Final = "HOLDFAST_JOB_NAMESPACE"
ENV_JOB_UID: Final = "HOLDFAST_JOB_UID"
ENV_REPLICAS: Final = "HOLDFAST_REPLICAS"  # number of processes in the world
ENV_POD_IP: Final = "HOLDFAST_POD_IP"
ENV_CHECKPOINT_PATH: Final = "HOLDFAST_CHECKPOINT_PATH"  # the agent reads it, too, to inspect storage
ENV_RUN: Final = "HOLDFAST_RUN"  # the agent reads it, too, to inspect storage
# JSON: {"every": {...}, "keep": {...}, "healthy": {...}} as in the spec
ENV_CHECKPOINT_POLICY: Final = "HOLDFAST_CHECKPOINT_POLICY"
# Written by the user of a training process without a job, read by the library: skip a checkpoint after so many attempts
# that restored it and committed nothing; 0: never.
ENV_POISON_AFTER: Final = "HOLDFAST_POISON_AFTER"
# Written by the agent for each trainer process, read by the library.
ENV_ATTEMPT: Final = "HOLDFAST_ATTEMPT"
ENV_PROCESS_INDEX: Final = "HOLDFAST_PROCESS_INDEX"
ENV_COORDINATOR: Final = "HOLDFAST_COORDINATOR"  # host:port of this attempt's JAX coordinator
ENV_PIN: Final = "HOLDFAST_PIN"  # JSON of manifest.CheckpointRef, or NO_PIN; absent: anything may be restored
NO_PIN: Final = "none"  # value of ENV_PIN if nothing may be restored: the attempt starts from scratch
ENV_FAILURES: Final = "HOLDFAST_FAILURES"  # JSON of sync.FailureHistory; absent without operator
ENV_TAKE_OVER: Final = "HOLDFAST_TAKE_OVER"  # TAKE_OVER_YES: replace the run's owner record (Directive.take_over)
TAKE_OVER_YES: Final = "1"  # the only value of ENV_TAKE_OVER with a meaning; the variable is absent otherwise
ENV_AGENT_SOCKET: Final = "HOLDFAST_AGENT_SOCKET"  # unix socket path of the agent
AGENT_SOCKET_NAME: Final = "agent.sock"
# Folder of the library's compile cache: one per pod, so that it survives restarts in place.
ENV_COMPILE_CACHE: Final = "HOLDFAST_COMPILE_CACHE"

# Ports, opened in the pods.
CONTROL_PORT: Final = 8443  # served by the operator, called by agents
METRICS_PORT: Final = 9090  # served by the operator, scraped by Prometheus
HEALTH_PORT: Final = 8080  # served by the operator, probed by the kubelet
COORDINATOR_PORT_BASE: Final = 8476  # opened by rank 0's JAX coordinator: base + attempt mod span
COORDINATOR_PORT_SPAN: Final = 64

# Paths of the control endpoint.
SYNC_PATH: Final = "/v1/sync"

# Checkpoint storage: `<path>/<run>/<attempt>/<step>/`. Written by the library, read by library, agent and command line.
OWNER_FILE: Final = "OWNER.json"
MANIFEST_FILE: Final = "HOLDFAST.json"
METADATA_FILE: Final = "METADATA.json"  # values that the program saved beside its state, if any
STATE_FOLDER: Final = "state"  # in a step's folder: a plain Orbax checkpoint of the training state
PARTIAL_FILE: Final = (
    "PARTIAL.json"  # written first into a step's folder, removed after its manifest: an unfinished save
)
RESTORED_FILE: Final = "RESTORED.json"  # in an attempt's folder: what it restored, until it has committed one itself
ANEW_FILE: Final = "ANEW.json"  # in an attempt's folder: it began anew, and this was the newest checkpoint before it
TRASH_PREFIX: Final = ".trash-"  # a folder being deleted was renamed to this first; never a candidate


def coordinator_port(attempt: int) -> int:
    """The coordinator's port in an attempt. Neighbouring attempts differ, so that a dying coordinator disturbs none."""
    return COORDINATOR_PORT_BASE + attempt % COORDINATOR_PORT_SPAN
