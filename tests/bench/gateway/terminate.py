# SPDX-License-Identifier: Apache-2.0
"""What is measured of one proxy that terminates TLS: ECDSA P-256, X25519, AES-128-GCM unless said.

The load is real TLS (causeway-tls-load tls), the origin behind the proxy hears plain requests. A
cell that counts handshakes is worth something only if every one was of the kind that is counted:
the client tells which it resumed, and the gateway's counters are held against that.
"""

import measures
import proxies
from harness import Failed
from measures import CONNECTIONS, Window, moved
from proxies import TERMINATED

HEAD = 16  # wire.hpp: of every request
EXCHANGE = ("--payload", 64 - HEAD, "--reply", 1024)
VERSIONS = ("1.3", "1.2")
CIPHERS = ("aes-128-gcm", "aes-256-gcm", "chacha20")
COUNTERS = {"aes-128-gcm": "aes_128_gcm", "aes-256-gcm": "aes_256_gcm",
            "chacha20": "chacha20_poly1305", "1.2": "tls_1_2", "1.3": "tls_1_3"}


def start(site, arm):
    proxies.start_origin(site, plain=True)
    return proxies.start_proxy(site, arm, terminates=True)


def run(site, *words):
    return proxies.run_client(site, TERMINATED, *words)


def check(values, load, version="1.3", cipher="aes-128-gcm", resumes=False):
    """Raises Failed when the handshakes were not what the cell says."""
    made, resumed = load["handshakes"], load["resumed"]
    if resumed != (made if resumes else 0):
        raise Failed(f"{resumed} of {made} handshakes were resumed")
    if "counters" not in values:
        return
    # To get its first session, a client that resumes makes one full handshake more.
    expected = {"handshakes_full": 1 if resumes else made, "handshakes_resumed": resumed,
                COUNTERS[version]: made + resumes, COUNTERS[cipher]: made + resumes}
    for name, count in expected.items():
        if values["counters"][name] != count:
            raise Failed(f"the gateway counts {values['counters'][name]} {name}, the load {count}")


def with_crypto(proxy, values):
    """What the gateway's cryptography runs on, for the report."""
    if proxy.admin:
        values["crypto"] = proxy.status()["tls"]["crypto"]
    return values


def small(site, arm):
    """Keep-alive requests; as fast as they go, and at one rate for the latency."""
    proxy = start(site, arm)
    words = ("--connections", CONNECTIONS, *EXCHANGE)
    run(site, *words, "--units", 2000)  # fills pools
    cells = {}
    for name, pace in (("terminate small", ()),
                       ("terminate latency", ("--rate", site.options.rate))):
        window = Window(proxy)
        load = run(site, *words, *pace, "--seconds", site.options.seconds)
        cells[name] = with_crypto(proxy, window.done(load))
        check(cells[name], load)
    found = cells["terminate latency"]["per_second"]
    if found < 0.95 * site.options.rate:
        cells["terminate latency"]["failed"] = \
            f"only {found:.0f} requests a second of {site.options.rate}"
    return cells


def handshake_words(version, resumes):
    """A new connection with one exchange on it."""
    return ("--connections", CONNECTIONS, *EXCHANGE, "--reopen", "--version", version,
            *(["--resume"] if resumes else []))


def handshakes(site, arm, resumes):
    """New connections: handshake, one exchange, close_notify and the end."""
    proxy = start(site, arm)
    cells = {}
    for version in VERSIONS:
        words = handshake_words(version, resumes)
        run(site, *words, "--units", 200)  # fills pools
        window = Window(proxy)
        load = run(site, *words, "--seconds", site.options.seconds)
        values = with_crypto(proxy, window.done(load))
        check(values, load, version, resumes=resumes)
        cells[f"terminate {'resumed' if resumes else 'full'} {version}"] = values
    return cells


def full(site, arm):
    return handshakes(site, arm, resumes=False)


def resumed(site, arm):
    return handshakes(site, arm, resumes=True)


def bulk(site, arm):
    """Bytes down and up over 4 connections; a third of what is passed through, for they cost as
    much time."""
    proxy = start(site, arm)
    few = 4
    block = max(site.options.bytes // 3 // 16, 2**20)
    cells = {}
    for cipher in site.options.ciphers:
        words = ("--connections", few, "--cipher", cipher)
        run(site, "--connections", 8 * few, "--cipher", cipher, "--payload", 2**20, "--reply",
            2**20, "--units", 64)  # fills pools
        both = []
        for name, way in (("download", ("--reply", block)),
                          ("upload", ("--payload", block, "--reply", 8))):
            window = Window(proxy)
            load = run(site, *words, *way, "--units", 16)
            both.append(with_crypto(proxy, moved(window, load)))
            check(both[-1], load, cipher=cipher)
            cells[f"terminate {name} {cipher}"] = both[-1]
        cells[f"terminate both ways {cipher}"] = measures.both_ways(both)
    return cells


def idle(site, arm):
    """256 KiB each way through each connection between the two looks."""
    proxy = start(site, arm)
    words = ("--payload", 2**18, "--reply", 2**18)
    return {"terminate idle": measures.idle_cell(site, proxy, TERMINATED, words)}


MEASURES = {"terminate_small": small, "terminate_full": full, "terminate_resumed": resumed,
            "terminate_bulk": bulk, "terminate_idle": idle}
