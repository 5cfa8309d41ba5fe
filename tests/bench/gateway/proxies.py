# SPDX-License-Identifier: Apache-2.0
"""The namespace that the gateway benchmark runs in, the processes in it, and the two proxies.

The namespaces have no name: they are gone when the last process in them is, however the run ends.
Every process that is started dies with this one (PR_SET_PDEATHSIG).
"""

import base64
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time

import harness
from harness import Failed, NotRun

ADDRESS = "127.0.0.1"
PROXY_PORT, NGINX_PORT, ORIGIN_PORT, CLOSING_PORT, PLAIN_PORT = 8443, 9443, 9444, 9445, 9446
# Passed through: name that the client asks for, and the origin behind it.
NAMES = {"small.bench.test": NGINX_PORT, "raw.bench.test": ORIGIN_PORT,
         "closing.bench.test": CLOSING_PORT}
SMALL, RAW, CLOSING = NAMES
TERMINATED = "terminate.bench.test"  # by a proxy that terminates; behind it is PLAIN_PORT
BODY = "x" * 128

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def _call(function, *arguments):
    if function(*arguments) != 0:
        raise Failed(f"{function.__name__}: {os.strerror(ctypes.get_errno())}")


class Site:
    """Working directory, namespaces and processes."""

    def __init__(self, options):
        self.options = options
        self.proxy_cpus, self.load_cpus = {options.proxy_cpu}, {options.load_cpu}
        self.work = tempfile.mkdtemp(prefix="causeway-bench-")
        self.processes = []
        os.sched_setaffinity(0, self.load_cpus)  # nothing of ours beside the proxy
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._enter_mounts()
        self._make_certificate()
        self.hellos = {name: self._record_hello(name) for name in NAMES}

    def path(self, name):
        return os.path.join(self.work, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as out:
            out.write(text)
        return self.path(name)

    def _enter_mounts(self):
        """wrk takes the name that it asks for from its URL: /etc/hosts must know that name."""
        hosts = self.write("hosts", f"{ADDRESS} localhost {' '.join(NAMES)}\n")
        _call(_libc.unshare, CLONE_NEWNS)
        _call(_libc.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        _call(_libc.mount, hosts.encode(), b"/etc/hosts", None, MS_BIND, None)

    def _make_certificate(self):
        harness.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                     "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                     f"/CN={SMALL}", "-addext",
                     f"subjectAltName=DNS:{SMALL},DNS:{TERMINATED}", "-keyout",
                     self.path("key.pem"), "-out", self.path("cert.pem")])
        with open(self.path("both.pem"), "w", encoding="ascii") as both:
            os.fchmod(both.fileno(), 0o600)
            for name in ("cert.pem", "key.pem"):
                with open(self.path(name), encoding="ascii") as one:
                    both.write(one.read())

    def _record_hello(self, name):
        """A real ClientHello for the name, as the TLS library of this machine makes it."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            pass
        with open(self.path(f"{name}.hello"), "wb") as out:
            out.write(outgoing.read())
        return out.name

    def fresh_network(self):
        """An empty network namespace: no TIME_WAIT of another cell counts against this one."""
        _call(_libc.unshare, CLONE_NEWNET)
        harness.run(["ip", "link", "set", "lo", "up"])
        with open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as out:
            out.write("10240 65535")

    def spawn(self, argv, cpus, log=None, **streams):
        parent = os.getpid()

        def prepare():
            _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)
            os.sched_setaffinity(0, cpus)

        if log:
            with open(log, "wb") as out:
                process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                           start_new_session=True, preexec_fn=prepare)
        else:
            process = subprocess.Popen(argv, start_new_session=True, preexec_fn=prepare,
                                       **streams)
        self.processes.append(process)
        return process

    def end(self, process):
        """At once: nothing here has a state that a slower end would save."""
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
        if process in self.processes:
            self.processes.remove(process)

    def clear(self):
        for process in list(self.processes):
            self.end(process)

    def close(self):
        self.clear()
        shutil.rmtree(self.work, ignore_errors=True)


def require(program):
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if not path:
        raise NotRun(f"{program} is not installed")
    return path


def wait_listening(process, port, log, what):
    def answers():
        if process.poll() is not None:
            raise Failed(f"{what} ended with status {process.returncode}: {harness.last_line(log)}")
        with socket.socket() as probe:
            return probe.connect_ex((ADDRESS, port)) == 0
    harness.wait_until(answers, 10, f"{what}: a listener on port {port}")


# --- origins --------------------------------------------------------------------------------------

NGINX = """\
daemon off;
master_process off;
worker_processes 1;
pid {work}/nginx.pid;
error_log {work}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {work}/nginx-body;
  proxy_temp_path {work}/nginx-proxy;
  fastcgi_temp_path {work}/nginx-fastcgi;
  uwsgi_temp_path {work}/nginx-uwsgi;
  scgi_temp_path {work}/nginx-scgi;
  server {{
    listen {address}:{port} ssl backlog=4096;
    ssl_certificate {work}/cert.pem;
    ssl_certificate_key {work}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    location / {{ return 200 "{body}"; }}
  }}
}}
"""


def start_nginx(site):
    config = site.write("nginx.conf", NGINX.format(work=site.work, address=ADDRESS,
                                                   port=NGINX_PORT, body=BODY))
    log = site.path("nginx.log")
    process = site.spawn([require("nginx"), "-p", site.work, "-e", site.path("nginx-error.log"),
                          "-c", config], site.load_cpus, log)
    wait_listening(process, NGINX_PORT, log, "nginx")


def tls_load(site):
    path = os.path.join(site.options.bin, "causeway-tls-load")
    if not os.access(path, os.X_OK):
        raise Failed(f"causeway-tls-load is not built (looked in {site.options.bin})")
    return path


def start_origin(site, closes=False, plain=False):
    port = CLOSING_PORT if closes else PLAIN_PORT if plain else ORIGIN_PORT
    log = site.path(f"origin-{port}.log")
    kind = ["--close"] if closes else ["--plain"] if plain else []
    process = site.spawn([tls_load(site), "origin", "--listen", f"{ADDRESS}:{port}", "--timeout",
                          "300", *kind], site.load_cpus, log)
    wait_listening(process, port, log, "the origin")


# --- proxies --------------------------------------------------------------------------------------

HAPROXY = """\
global
  maxconn {maxconn}
  nbthread {threads}
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 10m
  timeout server 10m
  timeout client-fin 5s
  timeout server-fin 5s
"""
HAPROXY_PASSES = """\
frontend gateway
  bind {address}:{port} backlog 4096
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  tcp-request content reject
"""
# Tickets under a file of keys (AES-256-CBC and HMAC), as a fleet has them; the gateway's are random
# ones (AES-256-GCM). Neither has state behind them.
HAPROXY_TERMINATES = """\
frontend gateway
  bind {address}:{port} backlog 4096 ssl crt {certificate} ssl-min-ver TLSv1.2 ssl-max-ver TLSv1.3 \
tls-ticket-keys {ticket_keys}
  default_backend plain
backend plain
  server one {address}:{plain_port}
"""


class Proxy:
    """A running proxy; everything that a cell reads of it."""

    def __init__(self, process, log, what, admin=None):
        self.process, self.log, self.what, self.admin = process, log, what, admin

    @property
    def pid(self):
        return self.process.pid

    def check_alive(self):
        if self.process.poll() is not None:
            raise Failed(f"{self.what} ended with status {self.process.returncode}: "
                         f"{harness.last_line(self.log)}")

    def status(self):
        return harness.admin_status(self.admin) if self.admin else None


def haproxy_passes():
    text = HAPROXY_PASSES.format(address=ADDRESS, port=PROXY_PORT)
    for number, name in enumerate(NAMES):
        text += f"  use_backend origin{number} if {{ req_ssl_sni -i {name} }}\n"
    for number, port in enumerate(NAMES.values()):
        text += f"backend origin{number}\n  server one {ADDRESS}:{port}\n"
    return text


def haproxy_terminates(site):
    keys = "".join(base64.b64encode(os.urandom(80)).decode() + "\n" for _ in range(3))
    return HAPROXY_TERMINATES.format(address=ADDRESS, port=PROXY_PORT, plain_port=PLAIN_PORT,
                                     certificate=site.path("both.pem"),
                                     ticket_keys=site.write("ticket-keys", keys))


def start_haproxy(site, threads, terminates):
    text = HAPROXY.format(maxconn=site.options.max_connections, threads=threads)
    text += haproxy_terminates(site) if terminates else haproxy_passes()
    log = site.path("haproxy.log")
    process = site.spawn([require("haproxy"), "-db", "-f", site.write("haproxy.cfg", text)],
                         proxy_cpus(site, threads), log)
    return Proxy(process, log, "haproxy")


def gateway_program(options, arm):
    words = options.variants[arm]
    if words and "/" in words[0]:
        return words[0], words[1:]
    return os.path.join(options.bin, "causeway-gateway"), words


def check_arm(options, arm):
    """Raises NotRun when the arm's program is missing."""
    if arm == "haproxy":
        require("haproxy")
    elif not os.access(gateway_program(options, arm)[0], os.X_OK):
        raise NotRun("causeway-gateway is not built (looked for "
                     f"{gateway_program(options, arm)[0]})")


def start_causeway(site, arm, threads, terminates):
    program, words = gateway_program(site.options, arm)
    admin, log = site.path("gateway.admin"), site.path("gateway.log")
    if os.path.exists(admin):
        os.unlink(admin)
    argv = [program, "--listen", f"tcp:{ADDRESS}:{PROXY_PORT}", "--threads", str(threads),
            "--admin", f"unix:{admin}", *words, *site.options.gateway_args]
    if terminates:
        argv += ["--cert", site.path("cert.pem"), "--key", site.path("key.pem"), "--upstream",
                 f"tcp:{ADDRESS}:{PLAIN_PORT}"]
    else:
        for name, port in NAMES.items():
            argv += ["--passthrough", f"{name}=tcp:{ADDRESS}:{port}"]
    return Proxy(site.spawn(argv, proxy_cpus(site, threads), log), log, arm, admin)


def proxy_cpus(site, threads):
    return site.proxy_cpus if threads == 1 else site.proxy_cpus | site.load_cpus


def start_proxy(site, arm, threads=1, terminates=False):
    if arm == "haproxy":
        proxy = start_haproxy(site, threads, terminates)
    else:
        proxy = start_causeway(site, arm, threads, terminates)
    wait_listening(proxy.process, PROXY_PORT, proxy.log, proxy.what)
    if proxy.admin:
        harness.wait_until(lambda: os.path.exists(proxy.admin), 5, f"{arm}: its admin socket")
    return proxy


# --- load -----------------------------------------------------------------------------------------

def client_argv(site, name, words):
    kind = ["tls", "--name", name] if name == TERMINATED else \
        ["client", "--hello", site.hellos[name]]
    return [tls_load(site), *kind, "--connect", f"{ADDRESS}:{PROXY_PORT}", "--timeout",
            str(site.options.limit), *(str(word) for word in words)]


def start_client(site, name, *words):
    return site.spawn(client_argv(site, name, words), site.load_cpus, stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish_client(site, process):
    """What the load client printed; Failed when any of its connections failed."""
    try:
        out, err = process.communicate(timeout=site.options.limit + 10)
    except subprocess.TimeoutExpired:
        raise Failed("causeway-tls-load did not end") from None
    finally:
        site.end(process)
    lines = out.decode(errors="replace").strip().splitlines()
    result = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if process.returncode != 0:
        reason = f"{result['errors']} errors, first: {result['error']}" if result.get("errors") \
            else err.decode(errors="replace").strip()[-300:]
        raise Failed(f"causeway-tls-load: status {process.returncode}: {reason}")
    return result


def run_client(site, name, *words):
    return finish_client(site, start_client(site, name, *words))


WRK = """\
done = function(summary, latency, requests)
  local e = summary.errors
  local form = '{"units":%d,"seconds":%f,"p50_us":%d,"p99_us":%d,"max_us":%d,"errors":%d}\\n'
  io.write(string.format(form, summary.requests, summary.duration / 1e6,
    latency:percentile(50), latency:percentile(99), latency.max,
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def run_wrk(site, connections, seconds):
    script = site.write("wrk.lua", WRK)
    process = site.spawn([require("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script,
                          f"https://{SMALL}:{PROXY_PORT}/"], site.load_cpus,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=seconds + 20)
    except subprocess.TimeoutExpired:
        raise Failed("wrk did not end") from None
    finally:
        site.end(process)
    lines = out.decode(errors="replace").strip().splitlines()
    if process.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise Failed(f"wrk: status {process.returncode}: {(err or out).decode().strip()[-300:]}")
    result = json.loads(lines[-1])
    if result["errors"] or not result["units"]:
        raise Failed(f"wrk: {result['errors']} errors in {result['units']} requests")
    return result


def pause(seconds):
    """For a state that nothing announces, as the tail of what a proxy does after the last byte."""
    time.sleep(seconds)
