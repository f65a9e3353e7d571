"""Choices for many regions at once, by a price on bytes.

With a price of L FLOPs per byte, each kind of region has a cheapest choice, whatever the others choose. The kept bytes of all n
regions share the budget with the working bytes w of the largest region. Since w is at least the average of the regions'
working bytes, no selection within ``cap`` costs less than

    bound(L) = sum over regions of min over choices (flops + L * (kept + working / n)) - L * cap

for any L (a Lagrangian dual; A. M. Geoffrion, Mathematical Programming Study 2, 1974). The best L is found by cutting
planes: the choices found so far give an upper estimate of ``bound``, whose maximum is the next price to try. The best
selections are combinations of the choices found on the way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.remat.choice import RegionChoice
from holdfast.remat.solve import Model

_NEAR = 0.002
"""The search for a price ends when the estimate is this close to the bound, relatively."""
_ROUNDS = 20


@dataclass
class Prices:
    """The search for a price.

    ``models``: one per kind of region. ``copies``: number of regions of each kind. ``options``: known choices of each kind, to
    which the search adds. ``bound_flops``: the best bound so far.
    """

    models: Sequence[Model]
    copies: Sequence[int]
    options: list[list[RegionChoice]]
    cap_bytes: float
    bound_flops: float = field(default=0.0, init=False)

    def search(self, deadline: float) -> None:
        """Add choices until the estimate is near the bound, or the deadline (of time.monotonic()) has passed."""
        for _ in range(_ROUNDS):
            price, top = self._top()
            found = self._try(price, deadline)
            if found is None:
                return
            self.bound_flops = max(self.bound_flops, found)
            if top - self.bound_flops <= _NEAR * top:
                return

    def _try(self, price: float, deadline: float) -> float | None:
        """The bound at a price, and add the choices behind it; None if the deadline has passed."""
        bound = -price * self.cap_bytes
        for model, copies, options in zip(self.models, self.copies, self.options, strict=True):
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            solution = model.cheapest(price, price / sum(self.copies), seconds=left)
            if solution is None:
                return None
            bound += copies * solution.bound_flops
            if solution.choices[0] not in options:
                options.append(solution.choices[0])
        return bound

    def _cost(self, choice: RegionChoice, price: float) -> float:
        return choice.flops + price * (choice.kept_bytes + choice.working_bytes / sum(self.copies))

    def _estimate(self, price: float) -> tuple[float, float]:
        """The bound if no other choices existed, and its slope to the right of ``price``."""
        value, slope = -price * self.cap_bytes, -self.cap_bytes
        for copies, options in zip(self.copies, self.options, strict=True):
            cheapest = min(self._cost(c, price) for c in options)
            bytes_of = min(
                c.kept_bytes + c.working_bytes / sum(self.copies)
                for c in options
                if self._cost(c, price) <= cheapest * (1 + 1e-12)
            )
            value += copies * cheapest
            slope += copies * bytes_of
        return value, slope

    def _top(self) -> tuple[float, float]:
        """The price at which the estimate is highest, and its height. It is concave, so its slope only falls."""
        low, high = 0.0, 1.0
        while self._estimate(high)[1] > 0 and high < 1e12:
            low, high = high, 4 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._estimate(middle)[1] > 0 else (low, middle)
        return high, max(self._estimate(high)[0], self._estimate(low)[0])
