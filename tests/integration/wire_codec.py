# SPDX-License-Identifier: Apache-2.0
"""A second implementation of the wire, written from proto/PROTOCOL.md and not from the C++ code.

Standard library only. It checks the vectors in proto/vectors, and tests use it as a peer that the
programs did not bring along. It is written to be read next to the specification, not to be fast.
"""

import json
import math
import re
import struct

MIN_FRAME = 14
MAX_FRAME = 65550
MAX_CONTROL = 4096
MAX_HELLO = 4096
MAX_DEPTH = 8
NEEDS_CSUM, DATA_VALID = 1, 2
GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP_L4 = 0, 1, 4, 5
KNOWN_FEATURES = ("offload", "uso", "keepalive")
TYPES = {0: "frame", 1: "super_frame", 2: "control"}
OFFLOAD = ("flags", "gso_type", "gso_size", "csum_start", "csum_offset")
KINDS = {1: "ping", 2: "pong", 3: "bye", 4: "offer_changed"}


class WireError(Exception):
    """`args[0]` is the name of the error in PROTOCOL.md."""


# --- Records ---------------------------------------------------------------------------------


def encode_plain(frame):
    return struct.pack("!I", len(frame)) + frame


def encode_record(kind, payload):
    return struct.pack("!I", kind << 24 | len(payload)) + payload


def encode_super_frame(offload, frame):
    header = struct.pack("!BBHHH", *(offload[name] for name in OFFLOAD))
    return encode_record(1, header + frame)


def _bounds(kind, max_frame):
    if kind == 0:
        return MIN_FRAME, max_frame
    if kind == 1:
        return MIN_FRAME + 8, max_frame + 8
    if kind == 2:
        return 1, MAX_CONTROL
    if kind >= 0x80:
        return 0, 0xFFFFFF
    raise WireError("unknown_type")


def decode_stream(data, wire="plain", max_frame=MAX_FRAME):
    """All records of a whole stream, and how it ends: "clean", "truncated" or an error's name."""
    records, at = [], 0
    while at < len(data):
        if len(data) - at < 4:
            return records, "truncated"
        (header,) = struct.unpack_from("!I", data, at)
        kind, length = (0, header) if wire == "plain" else (header >> 24, header & 0xFFFFFF)
        try:
            lowest, highest = _bounds(kind, max_frame)
        except WireError as error:
            return records, error.args[0]
        if length < lowest:
            return records, "too_short"
        if length > highest:
            return records, "too_long"
        payload = data[at + 4 : at + 4 + length]
        if len(payload) < length:
            return records, "truncated"
        at += 4 + length
        if kind >= 0x80:
            continue
        record = {"type": TYPES[kind], "payload": payload}
        if kind == 1:
            record["offload"] = dict(zip(OFFLOAD, struct.unpack_from("!BBHHH", payload)))
            record["payload"] = payload[8:]
        records.append(record)
    return records, "clean"


# --- Preface and hello -----------------------------------------------------------------------


def detect(first):
    if first[:4] == b"CWAY":
        return "native"
    return "plain" if first[0] == 0 else "unknown"


def encode_preface(hello, version=1):
    """`hello` is the JSON object as a dict."""
    text = json.dumps(hello, sort_keys=True, separators=(",", ":")).encode()
    return struct.pack("!4sHH", b"CWAY", version, len(text)) + text


def decode_preface(data):
    """(hello, bytes consumed), (None, all of them) when more is needed; or WireError."""
    if not b"CWAY".startswith(data[:4]):
        raise WireError("bad_magic")
    if len(data) < 8:
        return None, len(data)
    version, length = struct.unpack_from("!HH", data, 4)
    if not 2 <= length <= MAX_HELLO:
        raise WireError("bad_length")
    if len(data) < 8 + length:
        return None, len(data)
    if version != 1:
        raise WireError("bad_version")
    return decode_hello(data[8 : 8 + length]), 8 + length


def _no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if any(len(key.encode()) > 64 for key in keys):
        raise WireError("overlong")
    if len(set(keys)) != len(keys):
        raise WireError("duplicate_key")
    return dict(pairs)


def _number(text):
    value = float(text)
    if not math.isfinite(value):
        raise WireError("syntax")
    return value


def _constant(_):  # NaN and Infinity are no JSON
    raise WireError("syntax")


def _integer(text):
    # -0 and whatever needs more than 64 bits have no place in any field: no int, so wrong types
    # would be wrong too. Keep the sign of -0 visible.
    return -1 if text == "-0" else int(text)


def _depth(value):
    if isinstance(value, dict):
        return 1 + max((_depth(inner) for inner in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(inner) for inner in value), default=0)
    return 0


def parse_json(data):
    """A JSON object by the rules of "Hello": strict UTF-8, no mark, no NUL, bounded depth."""
    try:
        value = json.loads(
            data.decode("utf-8", "strict"),
            object_pairs_hook=_no_duplicates,
            parse_float=_number,
            parse_int=_integer,
            parse_constant=_constant,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8", "strict")  # lone surrogates
    except RecursionError as error:
        raise WireError("too_deep") from error
    except (UnicodeError, json.JSONDecodeError) as error:
        raise WireError("syntax") from error
    if not isinstance(value, dict):
        raise WireError("not_an_object")
    if _depth(value) > MAX_DEPTH:
        raise WireError("too_deep")
    return value


def _take_int(value, lowest, highest):
    if isinstance(value, bool) or not isinstance(value, int):
        raise WireError("wrong_type")
    if not lowest <= value <= highest:
        raise WireError("out_of_range")
    return value


def _take_text(value, pattern, longest=64):
    if not isinstance(value, str):
        raise WireError("wrong_type")
    if len(value.encode()) > longest:
        raise WireError("overlong")
    if not re.fullmatch(pattern, value):
        raise WireError("bad_value")
    return value


def _take_list(value, most):
    if not isinstance(value, list):
        raise WireError("wrong_type")
    if len(value) > most:
        raise WireError("out_of_range")
    return value


def _take_prefixed(value, address, highest):
    text = _take_text(value, address + r"/(0|[1-9][0-9]{0,2})")
    _take_int(int(text.rpartition("/")[2]), 0, highest)
    return text


V4, V6 = r"[0-9.]+", r"[0-9a-fA-F:.]+"
OFFER_FIELDS = {
    "address4": lambda value: _take_prefixed(value, V4, 32),
    "address6": lambda value: _take_prefixed(value, V6, 128),
    "gateway4": lambda value: _take_text(value, V4),
    "gateway6": lambda value: _take_text(value, V6),
    "resolvers": lambda value: [_take_text(each, V6) for each in _take_list(value, 8)],
    "mtu": lambda value: _take_int(value, 576, 65521),
}


def _take_offer(value):
    if not isinstance(value, dict):
        raise WireError("wrong_type")
    return {name: take(value[name]) for name, take in OFFER_FIELDS.items() if name in value}


def _take_versions(value):
    versions = [_take_int(each, 1, 65535) for each in _take_list(value, 2)]
    if len(versions) != 2 or versions[0] > versions[1]:
        raise WireError("out_of_range")
    return versions


def _take_features(value):
    names = [_take_text(each, r"(?s).*") for each in _take_list(value, 32)]
    return [name for name in KNOWN_FEATURES if name in names]


HELLO_FIELDS = {
    "versions": _take_versions,
    "session": lambda value: _take_text(value, r"[0-9a-f]{32}", 32),
    "lane": lambda value: _take_int(value, 0, 15),
    "lanes": lambda value: _take_int(value, 1, 16),
    "features": _take_features,
    "mtu": lambda value: _take_int(value, 576, 65521),
    "max_frame": lambda value: _take_int(value, 590, 0xFFFFFF),
    "offer": _take_offer,
    "refuse": lambda value: _take_text(value, r"[a-z0-9_-]+"),
}


def decode_hello(data):
    """The hello with its defaults filled in and without what is not known; or WireError."""
    value = parse_json(data)
    hello = {name: take(value[name]) for name, take in HELLO_FIELDS.items() if name in value}
    if "refuse" in hello:
        return {"versions": hello.get("versions", [1, 1]), "refuse": hello["refuse"]}
    if "versions" not in hello or "session" not in hello:
        raise WireError("missing")
    defaults = {"lane": 0, "lanes": 1, "features": [], "mtu": 1500, "max_frame": MAX_FRAME}
    hello = {**defaults, **hello}
    if hello["lane"] >= hello["lanes"]:
        raise WireError("out_of_range")
    return hello


def decode_offer(data):
    return _take_offer(parse_json(data))


REASONS = ("version", "malformed", "session", "lanes", "busy", "not_allowed", "stopping")


def negotiate(ours, theirs):
    """The agreement as a dict, or the reason of the refusal as a text."""
    if "refuse" in theirs:
        return theirs["refuse"] if theirs["refuse"] in REASONS else "other"
    version = min(ours["versions"][1], theirs["versions"][1])
    if version < max(ours["versions"][0], theirs["versions"][0]):
        return "version"
    if (ours["session"], ours["lane"]) != (theirs["session"], theirs["lane"]):
        return "session"
    lanes = min(ours["lanes"], theirs["lanes"])
    if ours["lane"] >= lanes:
        return "lanes"
    features = [name for name in ours["features"] if name in theirs["features"]]
    if "offload" not in features and "uso" in features:
        features.remove("uso")
    return {
        "version": version,
        "features": features,
        "mtu": min(ours["mtu"], theirs["mtu"]),
        "max_frame": min(ours["max_frame"], theirs["max_frame"], MAX_FRAME),
        "lanes": lanes,
    }


# --- Control ---------------------------------------------------------------------------------


def encode_control(kind, token=0, reason=0, offer=b""):
    if kind in ("ping", "pong"):
        return struct.pack("!BQ", 1 if kind == "ping" else 2, token)
    if kind == "bye":
        return struct.pack("!BB", 3, reason)
    return b"\x04" + offer


def decode_control(payload):
    """The record as a dict; WireError("unknown_kind") or ("malformed")."""
    if not payload:
        raise WireError("malformed")
    kind, body = KINDS.get(payload[0]), payload[1:]
    if kind is None:
        raise WireError("unknown_kind")
    if len(body) < {"ping": 8, "pong": 8, "bye": 1, "offer_changed": 1}[kind]:
        raise WireError("malformed")
    if kind == "bye":
        return {"kind": kind, "reason": body[0]}
    if kind == "offer_changed":
        return {"kind": kind, "offer": body}
    return {"kind": kind, "token": struct.unpack_from("!Q", body)[0]}


# --- Offload header --------------------------------------------------------------------------


def _require(condition, drop):
    if not condition:
        raise WireError("offload_" + drop)


def _ip(frame, l3, ipv6):
    """(start of the transport header, its protocol), after all rules for the IP header."""
    if ipv6:
        _require(len(frame) >= l3 + 40 and frame[l3] >> 4 == 6, "ip_header")
        l4, end, protocol = l3 + 40, l3 + 40 + int.from_bytes(frame[l3 + 4 : l3 + 6], "big"), frame[l3 + 6]
    else:
        _require(len(frame) >= l3 + 20 and frame[l3] >> 4 == 4, "ip_header")
        header = (frame[l3] & 15) * 4
        _require(header >= 20 and len(frame) >= l3 + header, "ip_header")
        l4, end, protocol = l3 + header, l3 + int.from_bytes(frame[l3 + 2 : l3 + 4], "big"), frame[l3 + 9]
    _require(l4 <= end and end == len(frame), "ip_length")
    if ipv6:
        _require(protocol != 44, "fragment")
        _require(protocol not in (0, 43, 51, 60, 135, 139, 140), "extension_header")
    else:
        _require(int.from_bytes(frame[l3 + 6 : l3 + 8], "big") & 0x3FFF == 0, "fragment")
    return l4, protocol


def _transport(frame, l4, protocol):
    """(start of the payload, checksum offset)."""
    _require(protocol in (6, 17), "protocol")
    room = len(frame) - l4
    if protocol == 17:
        _require(room >= 8 and int.from_bytes(frame[l4 + 4 : l4 + 6], "big") == room, "transport_header")
        return l4 + 8, 6
    _require(room >= 20, "transport_header")
    size = (frame[l4 + 12] >> 4) * 4
    _require(20 <= size <= room, "transport_header")
    return l4 + size, 16


def rebuild_offload(header, frame, mtu, offload=True, uso=False):
    """The virtio_net_hdr to write, as a dict; or WireError with the name of the drop."""
    result = dict(flags=0, gso_type=0, hdr_len=0, gso_size=0, csum_start=0, csum_offset=0)
    flags, gso = header["flags"] & ~DATA_VALID, header["gso_type"]
    if flags == 0 and gso == GSO_NONE:
        return result
    _require(flags & ~NEEDS_CSUM == 0, "flags")
    _require(gso in (GSO_NONE, GSO_TCP4, GSO_TCP6, GSO_UDP_L4), "type")
    _require(offload and (uso or gso != GSO_UDP_L4), "not_negotiated")
    _require(flags == NEEDS_CSUM, "flags")

    _require(len(frame) >= 14, "ethernet")
    l3, ethertype = 14, int.from_bytes(frame[12:14], "big")
    if ethertype in (0x8100, 0x88A8):
        _require(len(frame) >= 18, "ethernet")
        l3, ethertype = 18, int.from_bytes(frame[16:18], "big")
        _require(ethertype not in (0x8100, 0x88A8), "vlan_depth")
    _require(ethertype in (0x0800, 0x86DD), "ethertype")
    ipv6 = ethertype == 0x86DD
    _require(not (gso == GSO_TCP4 and ipv6) and not (gso == GSO_TCP6 and not ipv6), "ethertype")
    l4, protocol = _ip(frame, l3, ipv6)
    payload, checksum = _transport(frame, l4, protocol)
    if gso != GSO_NONE:
        _require((protocol == 17) == (gso == GSO_UDP_L4), "protocol")
    _require((header["csum_start"], header["csum_offset"]) == (l4, checksum), "checksum_place")
    result.update(flags=NEEDS_CSUM, csum_start=l4, csum_offset=checksum)
    if gso == GSO_NONE:
        return result
    size = header["gso_size"]
    _require(512 <= size <= mtu - (payload - l3), "gso_size")
    segments = math.ceil((len(frame) - payload) / size)
    _require(1 <= segments <= 128, "segments")
    if segments > 1:
        result.update(gso_type=gso, gso_size=size, hdr_len=payload)
    return result
