# SPDX-License-Identifier: Apache-2.0
"""Real servers behind a gateway where TLS ends."""

from .gateway_peers import need, wait_listening


def web(site, content=()):
    """nginx without TLS: /hello, and {file name: bytes}. Its address."""
    need("nginx")
    port = site.place.port()
    directory = site.directory / f"web{port}"
    directory.mkdir()
    for name, data in dict(content).items():
        (directory / name).write_bytes(data)
    temporary = "\n".join(f"  {kind}_temp_path {directory}/{kind};" for kind in
                          ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (directory / "nginx.conf").write_text(f"""
daemon off; master_process off; user root; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000;
{temporary}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    root {directory};
    location = / {{ return 200 "hello\\n"; }}
    location = /hello {{ return 200 "hello\\n"; }}
  }}
}}
""", encoding="ascii")
    process = site.process(f"web{port}", "nginx", "-c", directory / "nginx.conf", "-p", directory,
                           "-e", directory / "error.log")
    wait_listening(site.namespace, port, process)
    return f"tcp:127.0.0.1:{port}"
