"""What the operator costs and how soon it answers, with many training jobs.

    python -m benchmarks.fleet --jobs 100 --workers 4 [--idle-seconds 120] [--crashes 20] [--json]

A real control plane (API server, etcd, scheduler, controllers), the operator as a process, and agents in processes of their
own, with real TLS connections and real tokens bound to their pods. Nodes, kubelets and trainers exist on paper: a trainer
makes one step a second and commits a checkpoint every 300 steps. The phases:

1. Start: all jobs are created; it ends when every worker trains.
2. Idle: nothing happens but training. Calls are counted from the API server's audit log, processor time from /proc.
3. Recovery: one trainer after the other ends with code 1. Measured from the trainer's end until the last worker of its job
   has the first directive of the next attempt, and until it has the directive to run. Status writes are those of the job
   from the crash until two seconds after every worker trains; Event writes are all of this phase.

Everything shares this machine's cores: compare figures only within one machine and layout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from benchmarks import fleet_figures as figures
from benchmarks.fleet_agent import Pod
from benchmarks.fleet_cluster import SERVICE_NAME, OperatorUnderTest, PaperCluster, make_cluster, until
from localkube.cluster import Cluster

START_SECONDS: Final = 300.0
RECOVERY_SECONDS: Final = 60.0
CALM_SECONDS: Final = 2.0
CRASH_EVERY_SECONDS: Final = 1.0


@dataclass
class Worker:
    """What an agent has said so far, by attempt: when the first directive, the one to run and the first step came."""

    uid: str
    orders: IO[str]
    first: dict[int, float] = field(default_factory=dict)
    run: dict[int, float] = field(default_factory=dict)
    stepped: dict[int, float] = field(default_factory=dict)
    crashed: float = 0.0

    def newest(self) -> int:
        """The newest attempt in which it trains."""
        return max(self.stepped, default=0)


class Agents:
    """The processes of the simulated agents, and what they say."""

    def __init__(self, count: int, port: int, authority: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.fleet_agent", f"--port={port}", f"--name={SERVICE_NAME}"]
        self._processes = [
            subprocess.Popen([*command, f"--ca={authority}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        self._added = 0
        self._workers: dict[str, Worker] = {}
        self.jobs: dict[str, list[Worker]] = defaultdict(list)
        for process in self._processes:
            threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def add(self, job: str, pod: Pod) -> None:
        """Start the agent of a pod. Called by the paper kubelets."""
        process = self._processes[self._added % len(self._processes)]
        self._added += 1
        orders = process.stdin
        assert orders is not None
        worker = Worker(pod.uid, orders)
        self._workers[pod.uid] = worker
        self.jobs[job].append(worker)
        _order(orders, {"pod": asdict(pod)})

    def crash(self, worker: Worker) -> None:
        """End a worker's trainer with code 1."""
        worker.crashed = 0.0
        _order(worker.orders, {"crash": worker.uid})

    def cores(self) -> list[figures.Cores]:
        """One reading per process."""
        return [figures.Cores(process.pid) for process in self._processes]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.wait(20)

    def _listen(self, lines: IO[str] | None) -> None:
        for line in lines or ():
            said = json.loads(line)
            worker, attempt, at = self._workers[said["uid"]], said["attempt"], said["at"]
            if said["action"] == "crashed":
                worker.crashed = at
            elif said["action"] == "stepped":
                worker.stepped.setdefault(attempt, at)
            else:
                worker.first.setdefault(attempt, at)
                if said["action"] == "run":
                    worker.run.setdefault(attempt, at)


def _order(orders: IO[str], order: dict[str, Any]) -> None:
    orders.write(json.dumps(order) + "\n")
    orders.flush()


@dataclass(frozen=True)
class Recovery:
    """One crash and what followed."""

    job: str
    crashed_at: float  # monotonic, as the others
    directive_seconds: float
    run_seconds: float
    calm_at: float


class Fleet:
    """The three phases, once."""

    def __init__(
        self, cluster: Cluster, paper: PaperCluster, operator: OperatorUnderTest, options: argparse.Namespace
    ) -> None:
        self._options, self._paper = options, paper
        ports = operator.wait_leading()
        self._agents = Agents(options.agent_processes, ports["control"], operator.authority)
        paper.start_kubelets(self._agents.add)
        self._audit = figures.AuditLog(cluster.audit_log)
        self._passes = figures.ReconcileTimes(ports["metrics"])
        pids = {name: state.pid for name, state in cluster.processes().items()}
        self._cores = {"operator": [figures.Cores(operator.process.pid)], "agents": self._agents.cores()}
        for name, program in (("api_server", "kube-apiserver"), ("etcd", "etcd")):
            self._cores[name] = [figures.Cores(pids[program])]
        self._since = time.monotonic()

    def measure(self) -> dict[str, Any]:
        """Run the phases; the figures by name."""
        options = self._options
        start = self._start()
        time.sleep(options.settle_seconds)
        self._audit.new_calls()
        self._since_last()
        time.sleep(options.idle_seconds)
        idle = self._since_last()
        calls = self._audit.new_calls()
        recoveries = self._recover()
        storm = self._since_last()
        return {
            "jobs": options.jobs,
            "workers": options.workers,
            **self._idle_figures(calls, idle),
            **self._recovery_figures(recoveries, storm),
            "start": start,
            "idle": idle,
            "recovery": storm,
            "idle_calls": figures.by_kind(calls),
        }

    def close(self) -> None:
        """End the agents."""
        self._agents.stop()

    def _start(self) -> dict[str, float]:
        options = self._options
        began = time.monotonic()
        for number in range(options.jobs):
            self._paper.create_job(f"job-{number}", options.workers)
        until(self._all_train, "every worker trains", START_SECONDS)
        return {"seconds": round(time.monotonic() - began, 2), **self._since_last()}

    def _all_train(self) -> bool:
        jobs = list(self._agents.jobs.values())
        complete = [workers for workers in jobs if len(workers) >= self._options.workers]
        return len(complete) == self._options.jobs and all(w.newest() for workers in complete for w in workers)

    def _recover(self) -> list[Recovery]:
        drawn = random.Random(0)
        names = sorted(self._agents.jobs)
        order = drawn.sample(names, len(names))
        waits = []
        for number in range(self._options.crashes):
            job = order[number % len(order)]
            attempt = max(w.newest() for w in self._agents.jobs[job]) + 1
            until(lambda j=job, a=attempt: self._trains(j, a - 1), "the job trains again", RECOVERY_SECONDS)  # type: ignore[misc]
            worker = drawn.choice(self._agents.jobs[job])
            self._agents.crash(worker)
            waits.append((job, worker, attempt))
            time.sleep(CRASH_EVERY_SECONDS)
        return [self._finished(job, worker, attempt) for job, worker, attempt in waits]

    def _trains(self, job: str, attempt: int) -> bool:
        return all(attempt in worker.stepped for worker in self._agents.jobs[job])

    def _finished(self, job: str, crashed: Worker, attempt: int) -> Recovery:
        until(lambda: self._trains(job, attempt), f"{job} trains in attempt {attempt}", RECOVERY_SECONDS)
        workers = self._agents.jobs[job]
        return Recovery(
            job=job,
            crashed_at=crashed.crashed,
            directive_seconds=max(w.first[attempt] for w in workers) - crashed.crashed,
            run_seconds=max(w.run[attempt] for w in workers) - crashed.crashed,
            calm_at=max(w.stepped[attempt] for w in workers) + CALM_SECONDS,
        )

    def _since_last(self) -> dict[str, float]:
        """Passes, their p99 and everybody's cores since the last call."""
        now = time.monotonic()
        wall, self._since = now - self._since, now
        passes, p99 = self._passes.since_last(0.99)
        used = {f"{name}_cores": sum(c.since_last(wall) for c in found) for name, found in self._cores.items()}
        rounded = {name: round(value, 3) for name, value in used.items()}
        return {"passes_per_second": round(passes / wall, 2), "reconcile_p99_seconds": round(p99, 4), **rounded}

    def _idle_figures(self, calls: list[figures.Call], idle: dict[str, float]) -> dict[str, Any]:
        minutes = self._options.idle_seconds / 60
        [operator] = self._cores["operator"]
        return {
            "idle_calls_per_job_minute": round(len(calls) / self._options.jobs / minutes, 2),
            "resident_mib": round(operator.resident_mib(), 1),
            "operator_cores": idle["operator_cores"],
            "api_server_cores": round(idle["api_server_cores"] + idle["etcd_cores"], 3),
        }

    def _recovery_figures(self, recoveries: list[Recovery], storm: dict[str, float]) -> dict[str, Any]:
        latest = max(r.calm_at for r in recoveries)
        time.sleep(max(0.0, latest - time.monotonic()))
        calls = self._audit.new_calls()
        offset = time.time() - time.monotonic()
        writes = [c for c in calls if figures.is_status_write(c)]
        counts = [
            sum(c.name == r.job and r.crashed_at <= c.at - offset <= r.calm_at for c in writes) for r in recoveries
        ]
        directive = [r.directive_seconds for r in recoveries]
        run = [r.run_seconds for r in recoveries]
        events = sum(figures.is_event_write(c) for c in calls)
        return {
            "status_writes_per_recovery": round(sum(counts) / len(counts), 2),
            "status_writes_most": max(counts),
            "events_per_recovery": round(events / len(recoveries), 2),
            "crash_to_directive_p50_seconds": round(figures.percentile(directive, 0.5), 3),
            "crash_to_directive_p99_seconds": round(figures.percentile(directive, 0.99), 3),
            "crash_to_run_p50_seconds": round(figures.percentile(run, 0.5), 3),
            "crash_to_run_p99_seconds": round(figures.percentile(run, 0.99), 3),
            "reconcile_p99_seconds": storm["reconcile_p99_seconds"],
            "recovery_calls": figures.by_kind(calls),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = _options(arguments)
    load = os.getloadavg()[0]
    with make_cluster() as cluster, tempfile.TemporaryDirectory(prefix="holdfast-fleet-") as folder:
        paper = PaperCluster(cluster)
        paper.prepare(options.jobs * options.workers)
        operator = OperatorUnderTest(cluster, Path(folder))
        try:
            fleet = Fleet(cluster, paper, operator, options)
            try:
                found = fleet.measure()
            finally:
                fleet.close()
        finally:
            paper.end()
            operator.stop()
            if options.operator_log:
                options.operator_log.write_text(operator.log())
    found |= {"machine_cores": os.cpu_count(), "load_before": round(load, 2)}
    sys.stdout.write(json.dumps(found, indent=None if options.json else 1) + "\n")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4, help="of each job")
    parser.add_argument("--agent-processes", type=int, default=2)
    parser.add_argument("--settle-seconds", type=float, default=10.0, help="between the start and the idle phase")
    parser.add_argument("--idle-seconds", type=float, default=120.0, help="tokens are reviewed every two minutes")
    parser.add_argument("--crashes", type=int, default=20)
    parser.add_argument("--operator-log", type=Path, help="write the operator's log to this file")
    parser.add_argument("--json", action="store_true", help="print the figures in one line")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
