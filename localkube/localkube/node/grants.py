"""The rights that process nodes need in addition to those of a kubelet."""

from localkube.node.objects import Json

_ROLE = "localkube:service-endpoints"
_API = "rbac.authorization.k8s.io"

GRANTS: tuple[Json, ...] = (
    {
        "apiVersion": f"{_API}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _ROLE},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    },
    {
        "apiVersion": f"{_API}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _ROLE},
        "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": _ROLE},
        "subjects": [{"apiGroup": _API, "kind": "Group", "name": "system:nodes"}],
    },
)
"""Apply these once per cluster. Without them Service names resolve, but no Service accepts a connection.

EndpointSlices cannot have loopback addresses, so each node finds the ready pods of a Service itself, on all nodes.
"""
