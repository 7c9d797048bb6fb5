"""The controller: what to ask of the proposer, what to keep of its answer, and when to probe."""

from __future__ import annotations

import sys
from math import log

import numpy as np

from paceline.api import Drafts, EngineState, ReleaseReason, SpeculationController, StepOutcome
from paceline_goodput.acceptance import Acceptance, longest_of_kinds
from paceline_goodput.choice import best_items, best_lengths, evened, gains_of
from paceline_goodput.costs import CostCurve
from paceline_goodput.requests import RequestTable

__all__ = ["GoodputController"]

PROBE_SHARE = 0.015
"""Part of the time, while nothing is verified, that probes may cost."""
ROOM_TO_GROW = 1.5
"""A step has at most this many times the rows of the largest that was measured, or one draft."""
PLAN_LIFETIME, NUM_FIRST_STEPS = 8, 32
"""What to ask of the proposer is decided anew after so many steps, as requests come or go, and in the first steps."""
NOTABLE_SHARE = 0.02
"""Drafts of fewer tokens are considered where the longest take this much more of a step than the shortest."""


class GoodputController(SpeculationController):
    """Drafts as much as is expected to make the requests the fastest, by the geometric mean of their speeds.

    ``budgets`` asks the proposer where drafts are expected to pay, ``trim`` keeps what pays of the drafts that came:
    their lengths tell how good they are. All expectations are from what steps cost and brought; where drafts do not
    pay, a small share of the time goes to drafts of one request, so that it is noticed when they would.

    Args:
        max_tokens: Longest draft.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._kind_lengths = longest_of_kinds(max_tokens)[1:]
        self._positions = np.arange(1, max_tokens + 1)
        self._requests = RequestTable(len(self._kind_lengths) + 1)
        self._acceptance = Acceptance(max_tokens, self._requests)
        self._verifying = CostCurve()  # by rows of the target pass
        self._drafting = CostCurve()  # by tokens asked for
        self._drafts_are_trees = False
        self._num_steps = 0
        self._num_requests = 0
        self._fewest_requests = sys.maxsize
        self._plan = np.zeros(0, dtype=np.int64)
        self._plan_for: tuple[str, ...] = ()
        self._planned_at = 0
        self._depth = 0
        self._probes = False
        self._credit_s = 0.0

    # -- before drafting -----------------------------------------------------------------------------------------

    def budgets(self, state: EngineState) -> np.ndarray:
        self._num_steps += 1
        self._num_requests = len(state.request_ids)
        limits = np.minimum(state.limits, self._max_tokens)
        rows = self._requests.rows(state.request_ids)
        budgets = self._first_or_planned(state.request_ids, rows, limits)
        self._requests.asked[rows] = budgets
        self._depth = int(budgets.max())
        return budgets

    def _first_or_planned(self, request_ids: tuple[str, ...], rows: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """At first, and whenever fewer requests are there than ever, none: drafts are weighed against that cost."""
        if len(rows) < self._fewest_requests:
            self._fewest_requests = len(rows)
            return np.zeros(len(rows), dtype=np.int64)
        if self._is_due(request_ids):
            self._plan_for, self._planned_at = request_ids, self._num_steps
            self._acceptance.refresh()
            self._plan = self._expected_best(rows, limits)
        budgets: np.ndarray = np.minimum(self._plan, limits)
        return self._probe(rows, limits) if not budgets.any() and self._can_probe() else budgets

    def _is_due(self, request_ids: tuple[str, ...]) -> bool:
        age = self._num_steps - self._planned_at
        return age >= PLAN_LIFETIME or self._num_steps <= NUM_FIRST_STEPS or request_ids != self._plan_for

    def _expected_best(self, rows: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """The best draft length, for the requests to which it is expected to bring something; zeros if it is 0."""
        count = len(rows)
        chances = self._acceptance.chances_of_every_kind(rows)
        longest = np.minimum(self._kind_lengths, limits[:, None])
        if self._drafts_are_trees:
            chances = evened(chances, longest)
        owners, kinds, places = (self._positions <= longest[:, :, None]).nonzero()
        gains = gains_of(chances)[owners, kinds, places]
        shares = self._acceptance.shares(rows)[owners, kinds + 1]
        budgets = np.zeros(count, dtype=np.int64)
        best_speed = -log(self._verifying.at(count) + self._drafting.at(0))
        for depth in self._depths():
            among = np.flatnonzero(places < depth)
            items, speed = best_items(
                gains[among],
                shares[among],
                num_requests=count,
                seconds=self._verifying,
                fixed_s=self._drafting.at(depth),
                max_rows=self._max_rows(),
            )
            if len(items) and speed > best_speed:
                best_speed = speed
                budgets[:] = 0
                budgets[owners[among[items]]] = depth
        return budgets

    def _depths(self) -> range:
        """The draft lengths to compare: all, if the time that drafting takes goes by them."""
        extra_s = self._drafting.at(self._max_tokens) - self._drafting.at(1)
        if extra_s > NOTABLE_SHARE * self._verifying.at(self._num_requests):
            return range(1, self._max_tokens + 1)
        return range(self._max_tokens, self._max_tokens + 1)

    def _max_rows(self) -> float:
        count = self._num_requests
        least = count + (self._max_tokens if self._drafts_are_trees else 1)
        return max(ROOM_TO_GROW * max(self._verifying.largest, count), least)

    def _can_probe(self) -> bool:
        """Whether the time put aside covers one full draft of one request."""
        count = self._num_requests
        wanted_s = self._verifying.at(count + self._max_tokens) - self._verifying.at(count)
        wanted_s += self._drafting.at(self._max_tokens) - self._drafting.at(0)
        self._credit_s = min(self._credit_s, wanted_s)
        return self._credit_s >= wanted_s

    def _probe(self, rows: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """A full draft for the request that was tried the longest ago."""
        self._probes = True
        chosen = int(np.where(limits > 0, self._requests.tried[rows], self._num_steps + 1).argmin())
        self._requests.tried[rows[chosen]] = self._num_steps
        budgets = np.zeros(len(rows), dtype=np.int64)
        budgets[chosen] = limits[chosen]
        return budgets

    # -- after drafting ------------------------------------------------------------------------------------------

    def trim(self, drafts: Drafts, state: EngineState) -> np.ndarray:
        lengths = np.asarray(drafts.lengths)
        rows = self._requests.rows(state.request_ids)
        kinds = self._acceptance.kinds(lengths, self._requests.asked[rows])
        self._requests.kind[rows] = kinds
        self._acceptance.delivered(rows, kinds)
        self._drafts_are_trees = drafts.parents is not None
        return lengths if self._probes else self._best_beginnings(rows, kinds, lengths)

    def _best_beginnings(self, rows: np.ndarray, kinds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        chances = self._acceptance.chances(rows, kinds)
        if self._drafts_are_trees:
            chances = evened(chances, lengths)
        kept = best_lengths(
            chances,
            lengths,
            num_requests=self._num_requests,
            seconds=self._verifying,
            fixed_s=self._drafting.at(self._depth),
            max_rows=self._max_rows(),
        )
        return np.where(kept < lengths, 0, kept) if self._drafts_are_trees else kept

    # -- after the step ------------------------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        self._keep_account(outcome)
        if not outcome.num_prompt_rows:
            self._verifying.observe(outcome.num_rows, outcome.verify_time_s)
            if not self._probes:
                self._drafting.observe(self._depth, outcome.draft_time_s)
        if outcome.request_ids:
            rows = self._requests.rows(outcome.request_ids)
            self._acceptance.verified(rows, self._requests.kind[rows], outcome.drafted, outcome.accepted)
            self._requests.tried[rows] = self._num_steps
        if self._probes:
            self._planned_at = -PLAN_LIFETIME
        self._acceptance.fade()
        self._depth, self._probes = 0, False

    def _keep_account(self, outcome: StepOutcome) -> None:
        """Put time aside for probes in steps that verified nothing, and take out what a probe cost."""
        step_s = outcome.draft_time_s + outcome.verify_time_s
        if self._probes:
            without_s = self._verifying.at(outcome.num_rows - int(outcome.drafted.sum())) + self._drafting.at(0)
            self._credit_s -= max(step_s - without_s, 0.0)
        elif not outcome.request_ids:
            self._credit_s += PROBE_SHARE * step_s

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        self._requests.release(request_ids)
