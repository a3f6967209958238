"""Models from someone else: they cannot choose where files are written, or run code."""

import json
import os
import re
import shutil
import struct
import time
from pathlib import Path

import manifest
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

import checkpoint
import inference
import train
from choices import POSITIONS
from conftest import slow
from helpers import load, read_test_sentences, run_main, save, skip_search
from hparams import Hyperparams, hparams_path, make_hparams, read_hparams
from ids import SPECIALS
from interop import tensor_bundle
from model import make_model
from processes import forked
from runtime.errors import InputError
from runtime.files import announce_inputs, check_folder, may_write
from variable_names import variable_shapes, variables_by_2017_name
from vocab import SubwordVocab, WordVocab, save_vocabs


@pytest.fixture
def stranger(trained, tmp_path):
    """The folder of a model from someone else, with its text, next to the home of the user."""
    flags = trained("tiny")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    (home / ".bashrc").write_text("mine\n")
    shutil.copytree(flags["logdir"], work / "st")
    for side in ("source", "target"):
        shutil.copy(flags[f"{side}_test"], work / "st" / side)
    change(work / "st", results="results", source_test="st/source", target_test="st/target")
    return work / "st"


def change(logdir, /, **fields):
    """Change fields of hparams.json."""
    path = hparams_path(logdir)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def evaluate(stranger, *words, script="eval.py", prepare=skip_search):
    """Run a script in the parent of the model's folder, and return its `CompletedProcess`."""
    words = [script, "--logdir", "st", "--beam", "1", *words]
    done = forked(words, cwd=stranger.parent, prepare=prepare)
    assert "Traceback" not in done.stderr
    return done


def rename_checkpoint(stranger, name, run_file):
    """Rename the newest checkpoint, also in run.json, or without it in the file `checkpoint`."""
    path = checkpoint.latest_readable(stranger)
    for suffix in checkpoint.SUFFIXES:
        os.rename(f"{path}{suffix}", f"{stranger / name}{suffix}")
    if run_file:
        run = json.loads((stranger / "run.json").read_text())
        run["checkpoints"][-1]["name"] = name
        (stranger / "run.json").write_text(json.dumps(run))
    else:
        (stranger / "run.json").unlink()
        (stranger / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')


def test_a_foreign_model_can_be_used(stranger):
    done = evaluate(stranger, prepare=None)
    assert done.returncode == 0, done.stderr
    assert len([*(stranger.parent / "results").iterdir()]) == 1


@pytest.mark.parametrize("name", [".bashrc", "model_epoch_1_gs_2x", "model.ckpt-1\x1b[2J", "a b"])
@pytest.mark.parametrize("script, run_file", [("eval.py", False), ("train.py", True)])
def test_a_checkpoint_with_another_name_is_refused(stranger, name, script, run_file):
    rename_checkpoint(stranger, name, run_file)
    more = ["--recipe", "tiny"] if script == "train.py" else []
    done = evaluate(stranger, *more, script=script)
    problem = "does not list the checkpoints" if run_file else "the name of a checkpoint is like"
    assert done.returncode == 2 and problem in done.stderr
    assert "\x1b" not in done.stderr


def test_results_are_written_where_the_user_says(stranger):
    home = stranger.parent.parent / "home"
    # A file cannot claim that a flag was given.
    change(stranger, results=str(home), given=dict(results=str(home)))
    done = evaluate(stranger)
    assert done.returncode == 2 and f"add --results {home}" in done.stderr
    assert [path.name for path in home.iterdir()] == [".bashrc"]
    done = evaluate(stranger, "--results", str(home))
    assert done.returncode == 0 and len([*home.iterdir()]) == 2
    change(stranger, results="../home")
    assert evaluate(stranger).returncode == 2


@slow
def test_results_follow_no_link_out_of_the_folder(stranger):
    home = stranger.parent.parent / "home"
    name = checkpoint.latest_readable(stranger).name
    change(stranger, results="st/results", beam=1)
    (stranger / "results").mkdir()
    (stranger / "results" / name).symlink_to(home / ".bashrc")
    done = evaluate(stranger)
    assert done.returncode == 2 and "outside the current folder" in done.stderr
    (stranger / "results" / name).unlink()
    (stranger / "results").rmdir()
    (stranger / "results").symlink_to(home)
    done = evaluate(stranger)
    assert done.returncode == 2 and "outside the current folder" in done.stderr
    assert (home / ".bashrc").read_text() == "mine\n" and len([*home.iterdir()]) == 1


@pytest.mark.parametrize("name", ["lock", "hparams.json", "run.json", "bpe.source.metadata.tsv"])
def test_training_follows_no_link_out_of_the_folder(stranger, name, monkeypatch):
    bashrc = stranger.parent.parent / "home" / ".bashrc"
    path = stranger / name
    if path.exists():
        bashrc.write_bytes(path.read_bytes())
        path.unlink()
    before = bashrc.read_bytes()
    path.symlink_to(bashrc)
    flags = dict(logdir="st", recipe="tiny", source_train="st/source", target_train="st/target")
    flags |= dict(num_epochs=99)
    monkeypatch.chdir(stranger.parent)
    with pytest.raises(InputError, match=f"^st/{name}: is a link out of this folder"):
        run_main(train, flags)
    assert bashrc.read_bytes() == before


def test_files_outside_the_folder_are_named_before_they_are_read(stranger):
    elsewhere = stranger.parent.parent / "home" / "secret"
    shutil.copy(stranger / "source", elsewhere)
    change(stranger, source_test=str(elsewhere))
    done = evaluate(stranger)
    assert f"Reading {elsewhere}, which st/hparams.json names as source_test" in done.stderr
    done = evaluate(stranger, "--source_test", str(elsewhere))
    assert done.returncode == 0 and "Reading" not in done.stderr


def test_each_of_several_files_outside_the_folder_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hp = Hyperparams(source_train="inside,/outside/a,../b")
    announce_inputs(hp, "source_train")
    read = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert read == ["Reading /outside/a", "Reading ../b"]


@pytest.mark.parametrize(
    "fields",
    [
        dict(preprocessed="\0"),
        dict(results="a\x1b[31m"),
        dict(source_lang="de\n"),
        dict(source_lang="../de"),
        dict(best=3),
        dict(lr=float("nan")),
        dict(maxlen=2**31 - 1),  # a batch may be padded to this length
    ],
)
def test_an_invalid_field_is_refused(stranger, fields):
    change(stranger, **fields)
    done = evaluate(stranger)
    assert done.returncode == 2 and "st/hparams.json: not hyperparameters" in done.stderr
    assert "\x1b" not in done.stderr and "\0" not in done.stderr


def test_the_saved_logdir_is_ignored(stranger):
    change(stranger, logdir="../home")
    assert evaluate(stranger).returncode == 0


@pytest.mark.parametrize(
    "fields",
    [
        dict(hidden_units=65536),
        dict(num_blocks=1000),
        dict(decoder_blocks=1000),
        dict(ffn_units=65536),
        dict(tied_embeddings=False),
        dict(positions="product", maxlen=4000),
        dict(positions="hierarchical", maxlen=4000),
    ],
    ids=str,
)
def test_sizes_are_compared_before_a_model_is_built(stranger, fields, monkeypatch):
    change(stranger, **fields)
    monkeypatch.setattr(inference, "make_model", lambda *_: pytest.fail("was built"))
    with pytest.raises(InputError, match="variables do not match"):
        load(dict(logdir=str(stranger)))


@pytest.mark.parametrize("recipe", ["tiny", "legacy", "rnn_attention"])
@pytest.mark.parametrize("change", ["small", "missing"])
def test_each_variable_is_compared(monkeypatch, recipe, change):
    """One that the file lacks, or has in a small size, would be made of the size of the fields."""
    hp = make_hparams(dict(recipe=recipe, hidden_units=16))
    shapes = variable_shapes(hp, 30, 30)
    monkeypatch.setattr(checkpoint, "variable_shapes", lambda *_: shapes)
    saved = {checkpoint.checkpoint_key(name): shape for name, shape in shapes.items()}
    monkeypatch.setattr(checkpoint, "saved_shapes", lambda _: saved)
    checkpoint.check_sizes(hp, (30, 30), Path("model"))
    for key in shapes:
        other = {k: shape for k, shape in saved.items() if k != checkpoint.checkpoint_key(key)}
        other |= {checkpoint.checkpoint_key(key): [1, 1]} if change == "small" else {}
        monkeypatch.setattr(checkpoint, "saved_shapes", lambda _, other=other: other)
        with pytest.raises(InputError, match=re.escape(key)):
            checkpoint.check_sizes(hp, (30, 30), Path("model"))


WITHOUT_VARIABLES = ("sinusoid", "rotary", "none")


@pytest.mark.parametrize(
    "recipe, positions",
    [
        ("rnn", "auto"),
        *(
            pytest.param("tiny", name, marks=[slow] if name in WITHOUT_VARIABLES else [])
            for name in POSITIONS
        ),
    ],
)
def test_the_shapes_of_a_model_that_is_not_built(recipe, positions):
    fields = dict(positions=positions, num_blocks=2, decoder_blocks=3, num_heads=2)
    fields = {} if recipe == "rnn" else fields
    hp = make_hparams(dict(recipe=recipe, hidden_units=16) | fields)
    variables = variables_by_2017_name(make_model(hp, 30, 30)).items()
    later = "num_blocks_[12]/positions/"  # left out
    expected = {name: [*v.shape] for name, v in variables if not re.search(later, name)}
    assert variable_shapes(hp, 30, 30) == expected


ROW = dict(name="model_epoch_01_gs_9", epoch=1, step=9, epoch_done=True)
SCORED = ROW | dict(score=1.5, metric="bleu", dev="digest")
LATER = ROW | dict(name="model_epoch_02_gs_10", epoch=2, step=10)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "3",
        "{}",
        '{"checkpoints": []}',
        '{"checkpoints": [[]]}',
        *(
            json.dumps(dict(checkpoints=rows))
            for rows in (
                [ROW | dict(name="../.bashrc")],
                [ROW | dict(name="model_epoch_01_gs_8")],
                [ROW | dict(name="model_epoch_00_gs_9", epoch=0)],
                [ROW | dict(name="model_epoch_01_gs_-9", step=-9)],
                [ROW | dict(name="model_epoch_01_gs_9.0", step=9.0)],
                [ROW | dict(name="model_epoch_01_gs_True", step=True)],
                [ROW | dict(name=f"model_epoch_01_gs_{10**18}", step=10**18)],
                [ROW | dict(epoch_done="yes")],
                [ROW | dict(more=1)],
                [{"name": "model_epoch_01_gs_9"}],
                [SCORED | dict(score=float("nan"))],
                [SCORED | dict(score=float("-inf"))],
                [SCORED | dict(score=10**400)],
                [SCORED | dict(score="12")],
                [SCORED | dict(metric=None)],
                [SCORED | dict(dev=[])],
                [ROW | dict(metric="bleu")],
                [LATER, ROW],
                [ROW, ROW],
            )
        ),
        f'{{"checkpoints": {"[" * 200_000}',
    ],
    ids=lambda content: content[-60:],
)
def test_a_list_of_checkpoints_that_no_training_wrote(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match="run.json: does not list the checkpoints of a training"):
        manifest.read_rows(tmp_path)


def test_a_list_of_checkpoints(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(dict(checkpoints=[SCORED, LATER])))
    first, second = manifest.read_rows(tmp_path)
    assert first.score == 1.5 and (second.step, second.score, second.metric) == (10, None, None)


def test_a_link_in_a_folder_of_the_model(tmp_path):
    (tmp_path / "model" / "plugins").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    check_folder(tmp_path / "model")
    link = tmp_path / "model" / "plugins" / "profile"
    link.symlink_to(tmp_path / "model")  # leads into the folder
    check_folder(tmp_path / "model")
    link.unlink()
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="profile: is a link out of this folder"):
        check_folder(tmp_path / "model")
    link.unlink()
    link.symlink_to("profile")  # leads to itself
    check_folder(tmp_path / "model")
    hp = Hyperparams()
    assert may_write(link, "results", hp) == may_write(tmp_path, "results", hp)


# Checkpoints from someone else ----------------------------------------------------------


def masked_crc32c(content) -> bytes:
    """The checksum of TensorFlow's files."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def block(pairs, restarts=(0,)) -> bytes:
    """A block of a table, in which no key shares bytes with the key before it."""
    entries = [varint(0) + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs]
    return b"".join(entries) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(pairs, compression=0, **block_args) -> bytes:
    """A table with one block of pairs, and valid checksums."""
    content, handles = b"", []
    for make in (lambda: block(pairs, **block_args), lambda: block([])):
        body = make()
        handles.append(varint(len(content)) + varint(len(body)))
        body += bytes([compression])
        content += body + masked_crc32c(body)
    index = block([(b"\x7f", handles[0])])
    handles.append(varint(len(content)) + varint(len(index)))
    content += index + b"\0" + masked_crc32c(index + b"\0")
    return content + (handles[1] + handles[2]).ljust(40, b"\0") + tensor_bundle.MAGIC


HEADER = b"", BundleHeaderProto(num_shards=1).SerializeToString()


def tensor_entry(dims=(2, 3), dtype=types_pb2.DT_FLOAT, offset=0, size=24, **fields) -> bytes:
    entry = BundleEntryProto(dtype=dtype, offset=offset, size=size, **fields)
    for size in dims:
        entry.shape.dim.add(size=size)
    return entry.SerializeToString()


def write_bundle(folder, pairs, data=bytes(100), **table_args):
    """Write the files of a checkpoint with some entries, and return its path."""
    path = folder / "model_epoch_01_gs_1"
    Path(f"{path}.index").write_bytes(table(pairs, **table_args))
    Path(f"{path}{checkpoint.SUFFIXES[0]}").write_bytes(data)
    return path


STRING = dict(dims=(), dtype=types_pb2.DT_STRING)
SHARDS = BundleHeaderProto(num_shards=2).SerializeToString()
CRAFTED = {
    "negative dimension": ([(b"a", tensor_entry(dims=(-2, -3)))], "a dimension"),
    "overflow": ([(b"a", tensor_entry(dims=(2**62, 2**62)))], "a dimension"),
    "hidden overflow": ([(b"a", tensor_entry(dims=(2**31 - 1,) * 3 + (0,), size=0))], "too large"),
    "rank": ([(b"a", tensor_entry(dims=(1,) * 300))], "rank"),
    "no such type": ([(b"a", tensor_entry(dtype=77))], "type 77"),
    "reference type": ([(b"a", tensor_entry(dtype=101))], "type 101"),
    "variant": ([(b"a", tensor_entry(dtype=types_pb2.DT_VARIANT))], "type 21"),
    "size": ([(b"a", tensor_entry(size=28))], "the size does not match"),
    "negative size": ([(b"a", tensor_entry(size=-24))], "not a whole tensor"),
    "offset": ([(b"a", tensor_entry(offset=90))], "not within"),
    "negative offset": ([(b"a", tensor_entry(offset=-8))], "not a whole tensor"),
    "overlap": ([(b"a", tensor_entry()), (b"b", tensor_entry(offset=4))], "not within"),
    "other file": ([(b"a", tensor_entry(shard_id=1))], "not a whole tensor"),
    "garbage": ([(b"a", b"\xff\xff\xff")], "an entry of the index is damaged"),
    "no name": ([(b"a\x1b[2J", tensor_entry())], "cannot be printed"),
    "not UTF-8": ([(b"\x7e\xff", tensor_entry())], "utf-8"),
    "long name": ([(b"a" * 2000, tensor_entry())], "too long"),
    "order": ([(b"b", tensor_entry()), (b"a", tensor_entry(offset=24))], "out of order"),
    "twice": ([(b"a", tensor_entry()), (b"a", tensor_entry(offset=24))], "out of order"),
    "strings": ([(b"a", tensor_entry(dims=(9,), dtype=types_pb2.DT_STRING))], "more than one"),
    "string": ([(b"a", tensor_entry(**STRING))], "length of the string"),
    "slices": ([(b"a", tensor_entry(slices=[dict(extent=[dict(start=1)])]))], "not a whole tensor"),
    "shards": ([(b"", SHARDS)], "one file"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_index_is_refused_before_tensorflow_reads_it(tmp_path, name):
    pairs, problem = CRAFTED[name]
    path = write_bundle(tmp_path, [*([HEADER] if pairs[0][0] else []), *pairs])
    assert problem in str(checkpoint.read_error(path))
    with pytest.raises(InputError, match=f"{path}: this checkpoint is damaged"):
        checkpoint.latest_readable(tmp_path)


def test_a_written_index_is_accepted(tmp_path):
    data = bytes(32)
    sums = [int.from_bytes(masked_crc32c(part), "little") for part in (data[:24], data[24:])]
    pairs = [
        HEADER,
        (b"a", tensor_entry(crc32c=sums[0])),
        (b"b", tensor_entry((), types_pb2.DT_INT64, 24, 8, crc32c=sums[1])),
    ]
    path = write_bundle(tmp_path, pairs, data)
    assert checkpoint.read_error(path) is None
    assert checkpoint.saved_shapes(path) == {"a": [2, 3], "b": []}


@pytest.mark.parametrize(
    "change, problem",
    [
        (dict(compression=1), "compressed"),
        (dict(restarts=(0, 2)), "a block of the index is damaged"),
        (dict(restarts=(0, 2**32 - 1)), "a block of the index is damaged"),
        (dict(restarts=(1,)), "a block of the index is damaged"),
        (dict(restarts=()), "a block of the index is damaged"),
    ],
)
def test_a_crafted_block_is_refused(tmp_path, change, problem):
    path = write_bundle(tmp_path, [HEADER, (b"a", tensor_entry())], **change)
    assert problem in str(checkpoint.read_error(path))


@pytest.mark.parametrize("part", ["index", "data", "name"])
def test_a_checkpoint_is_two_files(stranger, part):
    path = checkpoint.latest_readable(stranger)
    if part == "name":  # TensorFlow would read the newest checkpoint within the folder
        path.mkdir()
        (path / "checkpoint").write_text('model_checkpoint_path: "../other"')
    else:
        file = Path(f"{path}{checkpoint.SUFFIXES[part == 'index']}")
        file.unlink()
        os.mkfifo(file)
    assert "not a regular file" in str(checkpoint.read_error(path))


@pytest.mark.parametrize("shape, dtype", [((3,), tf.float32), ((2,), tf.int32)])
def test_a_variable_of_another_shape_or_type_is_not_restored(tmp_path, shape, dtype):
    model = make_model(make_hparams(dict(recipe="tiny", hidden_units=16, num_blocks=1)), 30, 30)
    saved = checkpoint.make_checkpoint(model, progress=dict(a=tf.Variable(np.zeros(2, np.float32))))
    other = checkpoint.make_checkpoint(model, progress=dict(a=tf.Variable(tf.zeros(shape, dtype))))
    path = save(saved, tmp_path, 1, 1)
    checkpoint.restore(saved, path)
    with pytest.raises(InputError, match="progress/a/.* another shape or type"):
        checkpoint.restore(other, path)


def test_the_digest_of_parameters_is_of_all_checkpoints(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        Path(f"{path}.index").write_text(path.name)
    digests = {checkpoint.parameters_digest(some) for some in (paths, paths[:1], paths[1:])}
    assert len(digests) == 3


# Other files in logdir --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "large"])
@pytest.mark.parametrize(
    "name, read",
    [
        ("hparams.json", read_hparams),
        ("run.json", manifest.read_rows),
    ],
)
def test_a_pipe_or_a_file_of_any_size_is_refused(tmp_path, name, read, kind):
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 2**40)  # takes no space on the disk
    with pytest.raises(InputError, match=str(path)):
        read(tmp_path)


def test_a_pipe_that_training_would_write_to_is_refused(tmp_path):
    (tmp_path / "below").mkdir()
    check_folder(tmp_path)
    os.mkfifo(tmp_path / "below" / "projector_config.pbtxt")
    with pytest.raises(InputError, match="projector_config.pbtxt: not a regular file"):
        check_folder(tmp_path)


@pytest.mark.parametrize(
    "unit", ['model_checkpoint_path: "/', "\n", " ", 'all_model_checkpoint_paths: "/']
)
def test_the_file_of_the_newest_checkpoint_is_read_in_linear_time(tmp_path, unit):
    (tmp_path / "checkpoint").write_text(unit * (800_000 // len(unit)))
    start = time.process_time()
    with pytest.raises(InputError, match="names no checkpoint|the name of a checkpoint is like"):
        checkpoint.latest_readable(tmp_path)
    assert time.process_time() - start < 5  # 0.01 s; quadratic time would be minutes


# Vocabularies from someone else -----------------------------------------------------------


@pytest.fixture(scope="module")
def sentencepiece_model(trained):
    """The bytes of a model that prepro.py wrote."""
    return (Path(trained("tiny")["logdir"]) / "bpe.model").read_bytes()


def test_a_damaged_vocabulary_of_a_model(stranger):
    (stranger / "bpe.model").write_bytes(b"damaged")
    error = evaluate(stranger, script="translate.py").stderr
    assert "bpe.model: not a sentencepiece model" in error and "copy the file again" in error


def test_the_vocabulary_that_was_loaded_is_saved(tmp_path, sentencepiece_model):
    """prepro.py may write another one while train.py encodes its text."""
    words = "".join(f"{word}\t9\n" for word in (*SPECIALS, "ein"))
    contents = {"bpe.model": sentencepiece_model, "de.vocab.tsv": words.encode()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    vocabs = [SubwordVocab(tmp_path / "bpe.model"), WordVocab(tmp_path / "de.vocab.tsv", 0)]
    for name in contents:
        (tmp_path / name).write_text("another")
    (tmp_path / "logdir").mkdir()
    save_vocabs(vocabs, tmp_path / "logdir")
    for name, content in contents.items():
        assert (tmp_path / "logdir" / name).read_bytes() == content


# Text from someone else -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("<seg>a&#10;b&#13;&#10; c</seg>", ["a b  c"]),
        ("<seg>&amp;lt;</seg>", ["&lt;"]),
        ("<seg>a</seg><!-- <seg>b</seg>\n --><seg>c</seg>", ["a", "c"]),
        ("<seg><![CDATA[a < b && <c>]]></seg>", ["a < b && <c>"]),
        ('<DOC><SEG ID="1">a</SEG></DOC>', ["a"]),
        ("<seg>a <b>c</b></seg>", ["a c"]),
        ("<seg><b>a</b> c</seg>", ["a c"]),
    ],
)
def test_segments_are_one_line_each(tmp_path, text, sentences):
    path = tmp_path / "test.xml"
    path.write_text(text)
    assert read_test_sentences(path)[1] == sentences


def test_quotation_marks_in_cdata_are_cleaned_as_elsewhere(tmp_path):
    path = tmp_path / "test.xml"
    text = """I don't say "no" at all"""
    path.write_text(f"<seg><![CDATA[{text}]]></seg><seg>{text}</seg>")
    assert read_test_sentences(path)[0] == ["I don't say no at all"] * 2


def test_a_message_has_the_line_number_after_comments_and_cdata(tmp_path):
    path = tmp_path / "test.xml"
    path.write_text("<seg><![CDATA[a\nb]]></seg>\n<!-- c\n -->\n<seg>d\n")
    with pytest.raises(InputError, match=f"{path}:5: this <seg> is not closed"):
        read_test_sentences(path)


@pytest.mark.parametrize("unit", ["<", "<seg ", "<!--", "<![CDATA[", "<a> "])
def test_no_markup_takes_more_than_linear_time(tmp_path, unit):
    """A million of these units once took an hour."""
    path = tmp_path / "test.xml"
    path.write_text(f"<seg>a</seg><seg>{unit * 200_000}</seg>")
    start = time.process_time()  # of this process: other programs do not count
    try:
        assert len(read_test_sentences(path)[1]) == 2
    except InputError as error:
        assert f"{path}:1: " in str(error)
    assert time.process_time() - start < 6  # about 0.3 s; quadratic time would be minutes
