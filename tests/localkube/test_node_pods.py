"""Process nodes against a real control plane: every promise that a pod may rely on."""

import functools
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from localkube.cluster import Cluster as RealCluster
from localkube.node.grants import GRANTS
from tests.support.polling import until

Json = dict[str, Any]
T = TypeVar("T")
DEADLINE_SECONDS = 25.0


eventually = functools.partial(until, seconds=DEADLINE_SECONDS)


class Cluster:
    """kubectl and nodes of one control plane."""

    def __init__(self, folder: Path, real: RealCluster) -> None:
        self.folder, self.real = folder, real
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        command = [*self.real.kubectl_command(), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> Json:
        return dict(json.loads(self.run("get", *words, "-o", "json", "--ignore-not-found") or "{}"))

    def node(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        words = ["--image", f"team/*={sys.prefix}", "--name", name, "--kubeconfig", str(self.real.node_kubeconfig(name)), "--ready-file", str(ready), "--lease-seconds",
                 "2", "--backoff-seconds", "0.3", "--refresh-seconds", "0.5", "--state-dir", str(self.folder / name)]  # fmt: skip
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "localkube.node", *words, *more], stdout=log, stderr=log)
        self.started.append(process)
        eventually(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, (self.folder / f"{name}.log").read_text()
        return process


class Namespace:
    """Pods of one test, all on one node."""

    def __init__(self, cluster: Cluster, name: str, node: str) -> None:
        self.cluster, self.name, self.node = cluster, name, node

    def run(self, *words: str, check: bool = True, stdin: str | None = None) -> str:
        return self.cluster.run("-n", self.name, *words, check=check, stdin=stdin)

    def apply(self, *objects: Json) -> None:
        self.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pod(self, name: str, script: str, *, spec: Json | None = None, **container: Any) -> None:
        """Apply a pod with one container that runs a shell script."""
        body = {"name": "main", "image": "localkube/host", "command": ["sh", "-c", script]} | container
        whole = {"nodeName": self.node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        whole |= {"containers": [body]} | (spec or {})
        meta = {"name": name, "labels": {"app": name}}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole})

    def get(self, name: str) -> Json:
        return self.cluster.get("-n", self.name, "pod", name)

    def state(self, name: str) -> Json:
        statuses = self.get(name).get("status", {}).get("containerStatuses") or [{}]
        return dict(statuses[0])

    def ended(self, name: str) -> Json:
        return dict(eventually(lambda: self.state(name).get("state", {}).get("terminated")))

    def output(self, name: str) -> str:
        """What a pod printed, once it has ended well."""
        ended = self.ended(name)
        text = self.run("logs", name)
        assert ended["exitCode"] == 0, (ended, text)
        return text

    def ready(self, name: str) -> Json:
        return eventually(lambda: self.get(name) if self.state(name).get("ready") else {})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with RealCluster() as real:
        this = Cluster(tmp_path_factory.mktemp("nodes"), real)
        this.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": GRANTS}))
        yield this
        for process in this.started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[str]:
    process = cluster.node("node-a", "--label", "pool=a")
    yield "node-a"
    process.terminate()
    assert process.wait(20) == 0
    assert not (cluster.folder / "node-a" / "pods").exists()


@pytest.fixture
def space(cluster: Cluster, node: str) -> Iterator[Namespace]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.run("create", "namespace", name)
    eventually(lambda: cluster.get("-n", name, "serviceaccount", "default"))
    yield Namespace(cluster, name, node)
    cluster.run("delete", "namespace", name, "--wait=false")


def test_environment_comes_from_all_its_sources(space: Namespace) -> None:
    space.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"one": "1", "two": "2"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"word": "hush"}},
    )
    env = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "two"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}},
        {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "SUM", "value": "$(IP)-$(WORD)-$$(WORD)"},
    ]
    env_from = [{"prefix": "C_", "configMapRef": {"name": "c"}}]
    script = 'echo "$LABEL $KEY $MIB $C_one $SUM $(hostname) $1"'
    space.pod("env", script, env=env, envFrom=env_from, args=["x", "$(KEY)"],
              resources={"limits": {"memory": "64Mi"}})  # fmt: skip
    address = eventually(lambda: space.get("env").get("status", {}).get("podIP"))
    assert space.output("env") == f"env 2 64 1 {address}-hush-$(WORD) env 2\n"


def test_volumes_are_mounted_in_the_pod_and_leave_nothing_on_the_host(space: Namespace) -> None:
    place = f"/localkube-test-{uuid.uuid4().hex}"
    space.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "conf"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "sec"}},
    )
    token = {"serviceAccountToken": {"path": "token", "audience": "localkube-test", "expirationSeconds": 600}}
    label = {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}
    volumes = [
        {"name": "empty", "emptyDir": {}},
        {"name": "conf", "configMap": {"name": "c"}},
        {"name": "mixed", "projected": {"sources": [{"secret": {"name": "s"}}, token, label]}},
        {"name": "host", "hostPath": {"path": str(space.cluster.folder / "data"), "type": "DirectoryOrCreate"}},
    ]
    mounts = [
        {"name": "empty", "mountPath": f"{place}/e"},
        {"name": "conf", "mountPath": f"{place}/e/conf", "readOnly": True},
        {"name": "mixed", "mountPath": f"/var/run{place}"},
        {"name": "host", "mountPath": f"{place}/h", "subPath": "sub"},
    ]
    script = (
        f"set -e; echo kept > {place}/e/f; echo data > {place}/h/f; cat {place}/e/conf/k /var/run{place}/k;"
        f" cat /var/run{place}/n {place}/e/f; ! touch {place}/e/conf/x 2>/dev/null; echo; cat /var/run{place}/token"
    )
    space.pod("vol", script + "; sleep 100", spec={"volumes": volumes}, volumeMounts=mounts)
    text = eventually(lambda: t if (t := space.run("logs", "vol", check=False)).count("\n") >= 2 else "")
    head, token_text = text.rsplit("\n", 1)
    assert head == "confsecvolkept\n"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
              "spec": {"token": token_text, "audiences": ["localkube-test"]}}  # fmt: skip
    answer = json.loads(space.run("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))["status"]
    assert answer["authenticated"], answer
    assert answer["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["vol"]
    review["spec"] = {"token": token_text, "audiences": ["another"]}
    refused = json.loads(space.run("create", "-o", "json", "-f", "-", stdin=json.dumps(review)))["status"]
    assert not refused.get("authenticated")
    assert (space.cluster.folder / "data" / "sub" / "f").read_text() == "data\n"
    assert not Path(place).exists()
    assert not Path(f"/var/run{place}").exists()
    assert place not in Path("/proc/self/mounts").read_text()


def test_a_changed_configmap_reaches_a_running_pod(space: Namespace) -> None:
    conf: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "old"}}
    space.apply(conf)
    script = "cat /conf/k; until grep -q new /conf/k; do sleep 0.1; done; cat /conf/k"
    space.pod("p", script, spec={"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
              volumeMounts=[{"name": "v", "mountPath": "/conf"}])  # fmt: skip
    eventually(lambda: space.run("logs", "p", check=False) == "old")
    space.apply(conf | {"data": {"k": "new"}})
    assert space.output("p") == "oldnew"


def test_the_default_token_opens_the_api_server(space: Namespace) -> None:
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    code = (
        "import os, ssl, urllib.request as u; f='" + folder + "/';"
        "r = u.Request('https://%s:%s/api/v1/namespaces/x' % (os.environ['KUBERNETES_SERVICE_HOST'],"
        "os.environ['KUBERNETES_SERVICE_PORT']), headers={'Authorization': 'Bearer ' + open(f+'token').read()})\n"
        "try: u.urlopen(r, context=ssl.create_default_context(cafile=f+'ca.crt'))\n"
        "except u.HTTPError as e: print(e.read().decode())"
    )
    space.pod("api", "", image="team/operator:v1", command=["python", "-c", code])
    assert f"system:serviceaccount:{space.name}:default" in space.output("api")


@pytest.mark.parametrize(
    ("script", "code", "phase"), [("exit 0", 0, "Succeeded"), ("exit 7", 7, "Failed"), ("exit 137", 137, "Failed")]
)
def test_the_exit_code_and_the_last_words_are_reported(space: Namespace, script: str, code: int, phase: str) -> None:
    space.pod("p", f"echo words > /dev/termination-log; {script}")
    ended = space.ended("p")
    assert (ended["exitCode"], ended["message"]) == (code, "words\n")
    assert ended["reason"] == ("Completed" if code == 0 else "Error")
    assert eventually(lambda: space.get("p")["status"]["phase"] == phase)


def test_without_a_message_the_end_of_the_log_is_reported_where_asked(space: Namespace) -> None:
    space.pod("p", "echo first; echo last; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    assert space.ended("p")["message"] == "first\nlast\n"


def test_a_container_killed_from_outside_reports_the_signal(space: Namespace) -> None:
    space.pod("p", "trap : TERM; echo on; while :; do sleep 0.1; done")
    eventually(lambda: space.run("logs", "p", check=False) == "on\n")
    victims = [
        p for p in psutil.process_iter(["cmdline"]) if "trap : TERM; echo on" in " ".join(p.info["cmdline"] or [])
    ]
    victims[0].kill()
    assert space.ended("p")["exitCode"] == 128 + signal.SIGKILL


def test_a_failing_container_restarts_with_back_off_and_keeps_its_previous_log(space: Namespace) -> None:
    script = "echo run; test $(ls /v | wc -l) -ge 2 || { mktemp /v/XXXXXX; exit 3; }"
    space.pod("p", script, spec={"restartPolicy": "OnFailure", "volumes": [{"name": "v", "emptyDir": {}}]},
              volumeMounts=[{"name": "v", "mountPath": "/v"}])  # fmt: skip
    eventually(lambda: space.get("p").get("status", {}).get("phase") == "Succeeded")
    state = space.state("p")
    assert state["restartCount"] == 2
    assert state["lastState"]["terminated"]["exitCode"] == 3
    assert space.run("logs", "p", "--previous").startswith("run\n/v/")
    assert space.run("logs", "p", "--tail=1") == "run\n"


def test_init_containers_run_first_and_one_that_fails_fails_the_pod(space: Namespace) -> None:
    init = [{"name": "i", "image": "localkube/host", "command": ["false"]}]
    space.pod("p", "echo never", spec={"initContainers": init})
    eventually(lambda: space.get("p").get("status", {}).get("phase") == "Failed")
    assert "waiting" in space.state("p")["state"]


def test_sigterm_lets_a_pod_end_by_itself(space: Namespace) -> None:
    log = space.cluster.folder / f"{space.name}.out"
    space.pod("p", f"trap 'echo bye > {log}; exit 0' TERM; echo on; while :; do sleep 0.05; done",
              spec={"terminationGracePeriodSeconds": 3600})  # fmt: skip
    eventually(lambda: space.run("logs", "p", check=False) == "on\n")
    space.run("delete", "pod", "p")  # returns when the pod is gone
    assert log.read_text() == "bye\n"


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_with_all_its_children(space: Namespace) -> None:
    mark = f"localkube-{uuid.uuid4().hex}"
    log = space.cluster.folder / f"{space.name}.out"
    space.pod("p", f"setsid sh -c 'trap : TERM; while :; do sleep 0.1; done' {mark} & trap 'echo asked > {log}' TERM;"
                   f" echo on; while :; do sleep 0.1; test -e {log} && echo went on >> {log}; done",
              spec={"terminationGracePeriodSeconds": 1})  # fmt: skip
    eventually(lambda: space.run("logs", "p", check=False) == "on\n")
    assert alive(mark)
    space.run("delete", "pod", "p")
    assert log.read_text().startswith("asked\nwent on\n")
    assert not alive(mark)


def test_a_forced_deletion_kills_at_once(space: Namespace) -> None:
    mark = f"localkube-{uuid.uuid4().hex}"
    space.pod("p", f"trap : TERM; : {mark}; echo on; while :; do sleep 0.1; done",
              spec={"terminationGracePeriodSeconds": 60})  # fmt: skip
    eventually(lambda: space.run("logs", "p", check=False) == "on\n")
    space.run("delete", "pod", "p", "--grace-period=0", "--force")
    eventually(lambda: not alive(mark), seconds=3)


def alive(mark: str) -> list[int]:
    found = [p.pid for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]
    return [pid for pid in found if pid != os.getpid()]


def test_an_unknown_image_and_a_missing_secret_are_visible(space: Namespace) -> None:
    space.pod("typo", "true", image="taem/trainer:1")
    space.pod("ref", "true", env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}])
    eventually(lambda: space.state("typo").get("state", {}).get("waiting", {}).get("reason") == "ImagePullBackOff")
    waiting = eventually(lambda: space.state("ref").get("state", {}).get("waiting", {}).get("message"))
    assert waiting == 'secret "no" not found'
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "no"}, "stringData": {"k": "v"}}
    space.apply(secret)
    assert space.ended("ref")["exitCode"] == 0


def test_a_volume_does_not_hide_the_image(space: Namespace) -> None:
    """An image's files are the host's; a clone below /tmp must survive a volume that is mounted at /tmp."""
    above = str(Path(sys.prefix).parent)
    volumes = [{"name": "empty", "emptyDir": {}}]
    mounts = [{"name": "empty", "mountPath": above}]
    code = "import localkube.progress, os; print(os.path.isdir('" + above + "'))"
    spec = {"volumes": volumes}
    body = {"name": "main", "image": "team/trainer", "command": ["python", "-c", code], "volumeMounts": mounts}
    space.pod("p", "", spec=spec | {"containers": [body]})
    assert space.output("p").strip() == "True"


def test_a_command_that_does_not_exist_is_a_start_error(space: Namespace) -> None:
    space.pod("p", "", command=["no-such-program"])
    ended = space.ended("p")
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "no-such-program" in ended["message"]


def test_readiness_probe_and_gate_decide_when_a_service_name_reaches_the_pod(space: Namespace) -> None:
    server = "touch /ok; exec python3 -m http.server 8123 --bind $IP"
    ip = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    gate = [{"conditionType": "example.org/gate"}]
    space.pod("web", server.replace("touch /ok; ", ""), env=ip, spec={"readinessGates": gate},
              ports=[{"name": "http", "containerPort": 8123}],
              readinessProbe={"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1})  # fmt: skip
    ports = [{"port": 8080, "targetPort": "http"}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "site"}}
    space.apply(service | {"spec": {"selector": {"app": "web"}, "ports": ports}})
    space.ready("web")

    def condition(kind: str) -> str:
        return str(next(c["status"] for c in space.get("web")["status"]["conditions"] if c["type"] == kind))

    assert (condition("ContainersReady"), condition("Ready")) == ("True", "False")
    url = f"http://site.{space.name}.svc:8080/"
    code = f"import urllib.request as u\nfor i in range(200):\n try: print(u.urlopen('{url}').status); break\n"
    code += " except OSError as e: print(e, flush=True); import time; time.sleep(.1)"
    space.pod("client", "", image="localkube/host", command=["python3", "-c", code])
    eventually(lambda: "refused" in space.run("logs", "client", check=False))
    patch = {"status": {"conditions": [{"type": "example.org/gate", "status": "True"}]}}
    space.run("patch", "pod", "web", "--subresource=status", "--type=strategic", "-p", json.dumps(patch))
    eventually(lambda: condition("Ready") == "True")
    assert space.output("client").endswith("200\n")


def test_a_failing_liveness_probe_restarts_the_container(space: Namespace) -> None:
    probe = {"exec": {"command": ["test", "!", "-e", "/v/sick"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "test -e /v/was && rm -f /v/sick || touch /v/was /v/sick; sleep 100"
    space.pod("p", script, spec={"restartPolicy": "Always", "volumes": [{"name": "v", "emptyDir": {}}]},
              volumeMounts=[{"name": "v", "mountPath": "/v"}], livenessProbe=probe)  # fmt: skip
    eventually(lambda: space.state("p").get("restartCount") == 1 and space.state("p")["ready"])
    assert space.state("p")["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL


def test_a_startup_probe_ends_with_its_success_and_with_its_run(space: Namespace) -> None:
    """One that went on would end a container that has started, or the next run of one that has not."""
    folder = space.cluster.folder / space.name
    folder.mkdir()

    def count(what: str) -> int:
        return len((folder / what).read_text()) if (folder / what).exists() else 0

    startup = {"exec": {"command": ["sh", "-c", "printf s >> /v/startup; test -e /v/up"]},
               "periodSeconds": 1, "failureThreshold": 2}  # fmt: skip
    liveness = {"exec": {"command": ["sh", "-c", "printf l >> /v/liveness"]}, "periodSeconds": 1}
    script = "test -e /v/second || { until test -e /v/startup; do sleep 0.05; done; touch /v/second; exit 7; }; touch /v/up; sleep 100"
    space.pod("p", script, spec={"restartPolicy": "Always", "volumes": [{"name": "v", "hostPath": {"path": str(folder)}}]},
              volumeMounts=[{"name": "v", "mountPath": "/v"}], startupProbe=startup, livenessProbe=liveness)  # fmt: skip
    space.ready("p")
    tried = count("startup")
    (folder / "up").unlink()  # from now on it would fail, in a container that has long started
    lived = count("liveness")
    eventually(lambda: count("liveness") >= lived + 4)
    assert count("startup") == tried
    state = space.state("p")
    assert (state["restartCount"], state["ready"]) == (1, True)
    assert state["lastState"]["terminated"]["exitCode"] == 7


def test_logs_can_be_followed(space: Namespace) -> None:
    space.pod("p", "for i in 1 2 3; do echo $i; sleep 0.2; done")
    eventually(lambda: space.state("p").get("state", {}).get("running") or space.state("p")["state"].get("terminated"))
    assert space.run("logs", "-f", "p") == "1\n2\n3\n"


def test_two_pods_have_two_addresses(space: Namespace) -> None:
    space.pod("a", "sleep 100")
    space.pod("b", "sleep 100")
    first, second = space.ready("a")["status"]["podIP"], space.ready("b")["status"]["podIP"]
    assert first != second


def test_a_noexecute_taint_evicts(space: Namespace, cluster: Cluster) -> None:
    other = cluster.node("node-t")
    try:
        space.node = "node-t"
        space.pod("p", "exec sleep 100")
        space.ready("p")
        cluster.run("taint", "node", "node-t", "gone=soon:NoExecute")
        eventually(lambda: not space.get("p"))
    finally:
        other.terminate()
        assert other.wait(20) == 0


def test_a_dead_node_takes_its_processes_along_and_becomes_not_ready(space: Namespace, cluster: Cluster) -> None:
    mark = f"localkube-{uuid.uuid4().hex}"
    dead = cluster.node("node-d")
    space.node = "node-d"
    space.pod("p", f": {mark}; trap : TERM; (setsid sh -c 'sleep 100' {mark} &) ; while :; do sleep 0.1; done")
    space.ready("p")
    assert alive(mark)
    dead.kill()
    dead.wait()
    eventually(lambda: not alive(mark), seconds=3)
    assert str(cluster.folder / "node-d") not in Path("/proc/self/mounts").read_text()

    def ready() -> str:
        return str(
            next(c["status"] for c in cluster.get("node", "node-d")["status"]["conditions"] if c["type"] == "Ready")
        )

    eventually(lambda: ready() == "Unknown")
    again = cluster.node("node-d")
    ended = space.ended("p")
    again.kill()
    again.wait()
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
