# SPDX-License-Identifier: Apache-2.0
"""The vectors of proto/vectors against the independent codec. The unit tests hold the C++ code
against the same files, so the two implementations agree with each other through them."""

import json
import pathlib

import pytest
import wire_codec as wire

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "proto" / "vectors"


def load(name, section="cases"):
    cases = json.loads((VECTORS / f"{name}.json").read_text())[section]
    assert cases, "an empty list of vectors tests nothing"
    names = [case.get("name", case.get("first")) for case in cases]
    assert len(set(names)) == len(names), "every vector has its own name"
    return [pytest.param(case, id=name) for case, name in zip(cases, names)]


def join(parts):
    return b"".join(
        bytes.fromhex(part)
        if isinstance(part, str)
        else bytes.fromhex(part["fill"]) * part["count"]
        for part in parts
    )


def decode_case(kind, case):
    return wire.decode_stream(join(case["stream"]), kind, case.get("max_frame", wire.MAX_FRAME))


def check_records(kind, case):
    records, end = decode_case(kind, case)
    expected = [{**record, "payload": join(record["payload"])} for record in case["records"]]
    assert (records, end) == (expected, case["end"])
    return records


@pytest.mark.parametrize("case", load("plain"))
def test_plain(case):
    records = check_records("plain", case)
    if case["end"] == "clean":
        stream = b"".join(wire.encode_plain(record["payload"]) for record in records)
        assert stream == join(case["stream"])


def encode(record):
    if record["type"] == "super_frame":
        return wire.encode_super_frame(record["offload"], record["payload"])
    return wire.encode_record(2 if record["type"] == "control" else 0, record["payload"])


@pytest.mark.parametrize("case", load("native"))
def test_native(case):
    records = check_records("native", case)
    if case["end"] == "clean" and "skip" not in case["name"]:
        assert b"".join(encode(record) for record in records) == join(case["stream"])


@pytest.mark.parametrize("case", load("hello"))
def test_hello(case):
    preface = bytes.fromhex(case["preface"])
    after = bytes.fromhex(case.get("after", ""))
    if "text" in case:
        assert preface[8 : len(preface) - len(after)] == case["text"].encode()
    if "error" in case:
        with pytest.raises(wire.WireError) as raised:
            wire.decode_preface(preface)
        assert raised.value.args[0] == case["error"]
        return
    hello, consumed = wire.decode_preface(preface)
    assert hello == case.get("hello")
    assert consumed == len(preface) - len(after)
    if case.get("canonical"):
        assert wire.encode_preface(hello) == preface


@pytest.mark.parametrize("case", load("hello", "detect"))
def test_detect(case):
    assert wire.detect(bytes.fromhex(case["first"])) == case["is"]


@pytest.mark.parametrize("case", load("hello", "negotiate"))
def test_negotiate(case):
    agreed = wire.negotiate(case["ours"], case["theirs"])
    assert agreed == case.get("agreed", case.get("refused"))


@pytest.mark.parametrize("case", load("control"))
def test_control(case):
    payload = join(case["payload"])
    if "error" in case:
        with pytest.raises(wire.WireError, match=case["error"]):
            wire.decode_control(payload)
        return
    control = wire.decode_control(payload)
    shown = {**control, "offer": control["offer"].hex()} if "offer" in control else control
    assert shown == case["control"]
    if case.get("canonical"):
        assert wire.encode_control(**control) == payload


@pytest.mark.parametrize("case", load("control", "offers"))
def test_offer(case):
    if "error" in case:
        with pytest.raises(wire.WireError, match=case["error"]):
            wire.decode_offer(case["json"].encode())
        return
    assert wire.decode_offer(case["json"].encode()) == case["offer"]


@pytest.mark.parametrize("case", load("offload"))
def test_offload(case):
    limits = {name: case[name] for name in ("mtu", "offload", "uso")}
    frame = join(case["frame"])
    if "drop" in case:
        with pytest.raises(wire.WireError) as raised:
            wire.rebuild_offload(case["header"], frame, **limits)
        assert raised.value.args[0] == case["drop"]
        return
    assert wire.rebuild_offload(case["header"], frame, **limits) == case["vnet"]
