"""The checkpoint that a bundle carries, checked by both verifiers with a public key; and Ed25519 in plain Python,
compared with RFC 8032 and `cryptography`.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from support.handmade_bundles import Line, Thread, new_key, said, sealed

import compaction_store as cs
from compaction_store import offline
from compaction_store.checkpoints import SigningKey, keys, notes
from compaction_store.checkpoints.heads import Head

KEY = SigningKey.from_bytes("example.org/audit", bytes(range(32)))
OTHER = SigningKey.from_bytes("example.org/audit", bytes(range(1, 33)))

# RFC 8032, 7.1: secret key, public key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
            "655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
            "b00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28d"
            "c027beceea1ec40a"
        ),
    ),
]


def theirs(key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


@pytest.mark.parametrize(("secret", "public", "message", "signature"), VECTORS)
def test_the_vectors_of_rfc_8032_hold(secret: str, public: str, message: str, signature: str) -> None:
    key, data, signed = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature)
    assert Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).public_key().public_bytes_raw() == key
    assert offline.is_signed(key, signed, data)
    assert offline.is_key(key)
    assert not offline.is_signed(key, signed, data + b"x")
    for at in range(0, 512, 7):
        flipped = bytearray(signed)
        flipped[at // 8] ^= 1 << at % 8
        assert not offline.is_signed(key, bytes(flipped), data)


def _small() -> list[bytes]:
    """Returns every encoding of the eight points of small order, including those that are not canonical."""
    ys = [0, 1, offline.FIELD - 1, *(y for y in keys.WEAK if y > 1 and y != offline.FIELD - 1)]
    ys += [offline.FIELD, offline.FIELD + 1]
    return [(y | sign << 255).to_bytes(32, "little") for y in ys for sign in (0, 1)]


def test_it_says_what_cryptography_says_of_signatures_of_every_kind() -> None:
    """Valid and changed ones, second halves that are not reduced, keys and first halves of small order."""
    chance = random.Random(8032)
    small = _small()
    assert len(small) == 14
    seen = {True: 0, False: 0}
    for _ in range(300):
        signer = Ed25519PrivateKey.from_private_bytes(chance.randbytes(32))
        key, data = signer.public_key().public_bytes_raw(), chance.randbytes(chance.randrange(80))
        signature = signer.sign(data)
        factor = int.from_bytes(signature[32:], "little")
        kinds = [
            (key, signature),
            (key, signature[:32] + (factor + offline.ORDER).to_bytes(32, "little")),
            (key, bytes([signature[0] ^ 1]) + signature[1:]),
            (key, signature[:40] + chance.randbytes(24)),
            (key, chance.choice(small) + signature[32:]),
            (chance.choice(small), chance.choice(small) + bytes(32)),
            (chance.choice(small), signature),
            (chance.randbytes(32), signature),
            (key, signature[:-1]),
            (key, signature + b"\0"),
            (key, (offline.FIELD + chance.randrange(19)).to_bytes(32, "little") + signature[32:]),
        ]
        for public, given in kinds:
            found = offline.is_signed(public, given, data)
            assert found == theirs(public, given, data), (public.hex(), given.hex(), data.hex())
            seen[found] += 1
    assert seen[True] > 300


def test_keys_of_small_order_and_keys_in_another_form_are_no_keys() -> None:
    """With such a key, a forged signature is valid for any text."""
    forged = (1).to_bytes(32, "little") + bytes(32)
    assert any(offline.is_signed(key, forged, b"anything") for key in _small())
    others = [(offline.FIELD + n).to_bytes(32, "little") for n in range(2, 19)]
    for key in _small() + others:
        assert not offline.is_key(key)
        with pytest.raises(cs.InvalidInput, match="small order"):
            keys.public_key(key)
    for _ in range(20):
        key = SigningKey.generate("k").key
        assert offline.is_key(key)
        assert keys.public_key(key) == key


# ---- bundles that carry a checkpoint


def thread(name: str = "t", messages: int = 5) -> Thread:
    made = Thread("default", name)
    for n in range(messages):
        made.message(json.dumps({"role": "user", "content": str(n)}))
    return made


def carrying(made: Thread, tmp_path: Path, *, pos: int | None = None, signer: SigningKey = KEY) -> Thread:
    """Returns the thread with a checkpoint over its state at a pos, and over twenty other threads."""
    log = cs.CheckpointLog(tmp_path / f"{signer.key.hex()[:8]}.jsonl", signer.key)
    entry = bytes.fromhex(made.entries[(pos or len(made.entries)) - 1]["entry"])
    heads = [Head(made.uid, bytes(8), pos or len(made.entries), entry)]
    heads += [Head(new_key("default", f"other {n}"), bytes(8), 3, bytes(32)) for n in range(20)]
    writer = log.writer()
    for head in sorted(heads, key=lambda head: head.thread_uid):
        writer.add(head)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    log.append(notes.sign(signer, "default", writer.tree, writer.hash, None, moment))
    writer.keep()
    made.checkpoint = log.proof(made.uid)
    return made


def both(lines: list[bytes], *keys: SigningKey) -> tuple[tuple[str, ...], list[str], cs.Report]:
    report = cs.verify_bundle(lines, public_keys=[key.key for key in keys])
    walk = offline.check(io.BytesIO(b"".join(lines)), keys=[key.key for key in keys])
    assert bool(report.findings) == bool(walk.findings)
    return tuple(finding.what for finding in report.findings), walk.notes, report


@pytest.mark.parametrize("pos", [None, 3, 1])
def test_a_checkpoint_that_holds_is_reported_with_its_reach(tmp_path: Path, pos: int | None) -> None:
    lines = carrying(thread(), tmp_path, pos=pos).lines()
    findings, notes, report = both(lines, OTHER, KEY)
    assert (findings, report.covered) == ((), pos or 5)
    newer = 5 - (pos or 5)
    told = f"example.org/audit/default signed pos {pos or 5} and its entry at 2026-01-02T03:04:05.000000Z"
    assert notes == [f"{told}; {newer} of the entries are newer"]
    assert f"signed pos {pos or 5}" in report.notes[0]
    assert "which was not checked" in both(lines)[2].notes[0]


def test_an_erased_threads_checkpoint_holds_by_its_key(tmp_path: Path) -> None:
    made = thread()
    made.erase()
    findings, _, report = both(carrying(made, tmp_path).lines(), KEY)
    assert (findings, report.covered) == ((), 6)


def test_whatever_a_checkpoint_does_not_prove_is_found_by_both(tmp_path: Path) -> None:
    made = carrying(thread(), tmp_path)
    carried: Line = dict(made.checkpoint or {})
    lines = made.lines()
    assert both(lines, KEY)[0] == ()
    assert "no known key signed the note" in both(lines, OTHER)[0][0]
    manifest, *entries = said(lines)
    note, proof = carried["note"], carried["proof"]
    wrong: list[Any] = [
        None, carried | {"note": note.replace("\n21\n", "\n22\n")}, carried | {"note": ""}, carried | {"note": "\n\n"},
        carried | {"note": note[:-10] + "\n"}, carried | {"leaf_index": -1},
        carried | {"leaf_index": (carried["leaf_index"] + 1) % 21}, carried | {"leaf_index": 2**62},
        carried | {"proof": proof[:-1]}, carried | {"proof": []}, carried | {"proof": ["x"]},
        carried | {"proof": [*proof, "00" * 32]}, carried | {"proof": ["", *proof[1:]]},
        carried | {"proof": [proof[0], *reversed(proof[1:])]}, carried | {"proof": [proof[0][:-2] + "00", *proof[1:]]},
        carried | {"note": note.replace("time 2026", "time 2025")},
        carrying(thread("u"), tmp_path, signer=OTHER).checkpoint,
    ]  # fmt: skip
    for changed in wrong:
        assert both(sealed([manifest | {"checkpoint": changed}, *entries]), KEY)[0], changed
    for changed in wrong[1:]:
        assert not both(sealed([manifest | {"checkpoint": changed}, *entries]))[0], "without a key nothing holds it"


def test_a_chain_that_was_computed_anew_or_cut_off_is_found_by_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = carrying(thread(), tmp_path, pos=4).checkpoint
    anew = Thread("default", "t")
    for n in range(5):
        anew.message(json.dumps({"role": "user", "content": f"forged {n}"}))
    anew.checkpoint = checkpoint
    assert both(anew.lines(), KEY)[0] == ("a checkpoint has another entry at this pos",)
    short = thread(messages=3)
    short.checkpoint = checkpoint
    assert "the chain ends at pos 3" in both(short.lines(), KEY)[0][0]
    assert both(short.lines())[0] == ()


@pytest.mark.parametrize("keys", ["ab" * 32, b"x", ["zz"], [b"short"], [bytes(32)], 5])
def test_what_is_no_key_is_refused(keys: Any) -> None:
    with pytest.raises(cs.InvalidInput):
        cs.verify_bundle(thread().lines(), public_keys=keys)


def test_the_file_checks_several_bundles_and_their_signatures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(carrying(thread(name), tmp_path / name).lines()))

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-I", offline.__file__, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, told = run("a.jsonl", "b.jsonl", "--public-key", KEY.key.hex())
    assert (code, told.splitlines()[-1]) == (0, "2 bundles, 0 findings")
    assert told.count("signed pos 5") == 2
    assert run("a.jsonl", "--public-key", KEY.key.hex())[0] == 0
    code, told = run("a.jsonl", "b.jsonl", "--public-key", OTHER.key.hex())
    assert (code, told.splitlines()[-1]) == (1, "2 bundles, 2 findings")
    assert run("a.jsonl", "gone.jsonl")[0] == 2
    for wrong in ("00" * 32, "zz", KEY.key.hex().upper()):
        assert run("a.jsonl", "--public-key", wrong)[0] == 2
    assert run("a.jsonl", "b.jsonl", "--head", "ab" * 32)[0] == 2
