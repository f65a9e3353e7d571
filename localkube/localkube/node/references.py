"""The values of fieldRef and resourceFieldRef: facts about a pod and its containers."""

import math
import os
import re
from dataclasses import dataclass
from decimal import Decimal

from localkube.node.objects import Json

_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, its address and its node's address."""

    pod: Json
    pod_ip: str
    host_ip: str

    def field(self, path: str) -> str:
        """The value of a fieldRef. Raises ValueError for a path that the downward API does not have."""
        meta, spec = self.pod["metadata"], self.pod["spec"]
        if match := _SUBSCRIPT.match(path):
            return str((meta.get(match[1]) or {}).get(match[2], ""))
        plain = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
            "status.hostIP": self.host_ip,
            "status.hostIPs": self.host_ip,
        }
        if path in plain:
            return str(plain[path])
        if path in ("metadata.labels", "metadata.annotations"):
            pairs = sorted((meta.get(path.removeprefix("metadata.")) or {}).items())
            return "\n".join(f'{key}="{_escaped(value)}"' for key, value in pairs)
        raise ValueError(
            f"fieldPath: found {path!r}, allowed: {', '.join(plain)}, metadata.labels, metadata.annotations"
        )

    def resource(self, reference: Json, container: Json) -> str:
        """The value of a resourceFieldRef. A missing limit counts as all that the machine has."""
        kind, _, name = reference["resource"].partition(".")
        named = reference.get("containerName")
        if named:
            all_of_them = self.pod["spec"]["containers"] + (self.pod["spec"].get("initContainers") or [])
            container = next((entry for entry in all_of_them if entry["name"] == named), container)
        resources = container.get("resources") or {}
        value = (resources.get(kind) or {}).get(name)
        if value is None:
            value = machine().get(name, "0") if kind == "limits" else "0"
        return str(divided(value, reference.get("divisor") or "1"))


def divided(value: str | float, divisor: str | float) -> int:
    """How many divisors make up a quantity, rounded up; a divisor of 0 means 1. Raises ValueError."""
    return math.ceil(_quantity(value) / (_quantity(divisor) or 1))


def machine() -> dict[str, str]:
    """CPU cores and bytes of memory of this machine."""
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "ephemeral-storage": str(os.statvfs("/").f_blocks * os.statvfs("/").f_frsize),
    }


def _quantity(text: str | float) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity  # loads the whole client (0.5 s), which few pods need

    try:
        return Decimal(parse_quantity(text))
    except ValueError as problem:
        raise ValueError(f"{text!r} is not a quantity (a number with m, k, M, G, Ki, Mi, Gi ...)") from problem


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
