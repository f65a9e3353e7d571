"""What process nodes need from the API beyond a kubelet's own rights."""

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
"""A node finds a Service's ready pods itself, on all nodes, since EndpointSlices cannot hold loopback addresses.

Apply these once per cluster; without them Service names resolve on the node, but nothing listens behind them.
"""
