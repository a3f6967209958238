"""Convert a model to ONNX, as a folder that translates in Python and in the browser.

    encoder.onnx     source ids (1, T) -> the memory, and the first state of the decoder
    step.onnx        one step of a search: the most likely next tokens, and the next state
    model.json       how to tokenize, and how to search
    *.model          the sentencepiece models, if there are any

The files of web/ have the loop of the search: a page with its program, and one in Python.
Their README.md is put after the card of the model.
"""

import json
import logging
import re
import shutil
import sys
import warnings
from pathlib import Path

import tensorflow as tf
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from support.errors import InputError
from support.optional import import_optional
from text.ids import BOS, EOS, SPECIALS, UNK
from text.lines import INVISIBLE, JOINERS, LOOSE_NON_JOINER, UNJOINED, language_code
from text.vocab import WordVocab, save_vocabs
from translation.inference import describe_decoding, suppressed_ids
from translation.search import suppress

WEB = Path(__file__).resolve().parent / "web"
OPSET = 18  # version of ONNX's operations
UNKNOWN_PENALTY = 10.0  # of sentencepiece, for a character without a subword of unigrams


def write(loaded, path, quantization):
    """Write a `LoadedModel` into an empty folder, with matrices in "float32" or "int8"."""
    hp, (source, target) = loaded.hp, loaded.vocabs
    if hp.temperature or hp.no_repeat_ngram:
        raise InputError("the ONNX search has no temperature and no no_repeat_ngram. Set both to 0")
    logging.disable(logging.WARNING)  # the logs of the libraries concern their developers
    with warnings.catch_warnings(action="ignore"):
        tf2onnx = import_optional("tf2onnx")
        functions = make_functions(loaded.model, suppressed_ids(hp, hp.beam))
        for name, function in functions.items():
            graph, _ = tf2onnx.convert.from_function(
                function, function.input_signature, opset=OPSET
            )
            file = path / f"{name}.onnx"
            file.write_bytes(graph.SerializeToString())
            if quantization == "int8":
                dynamic = import_optional("onnxruntime.quantization")
                dynamic.quantize_dynamic(file, file, per_channel=True)
    logging.disable(logging.NOTSET)
    if hp.tokenizer == "bpe":
        save_vocabs(loaded.vocabs, path)
    extra = hp.max_output_tokens(0)
    search = dict(start=BOS, end=EOS, beam=hp.beam, alpha=hp.alpha)
    search |= dict(max_input_tokens=hp.max_input_tokens, pad_to=hp.pad_to or 0)
    # A translation of n source tokens has at most n * factor // 10 + extra tokens.
    search["max_output"] = dict(factor=hp.max_output_tokens(10) - extra, extra=extra)
    settings = dict(
        languages=[*map(language_code, (hp.source_lang, hp.target_lang))],
        description=describe_decoding(loaded),
        search=search,
        normalize=normalization_patterns(),
        source=describe_tokenizer(source, encodes=True),
        target=describe_tokenizer(target),
    )
    (path / "model.json").write_text(json.dumps(settings, ensure_ascii=False) + "\n", "utf-8")
    for name in ("index.html", "style.css", "translator.js", "translate.py", "README.md"):
        shutil.copy(WEB / name, path)


def make_functions(model, suppress_ids) -> dict:
    """Make the two functions of a StepModel that become ONNX graphs, by name.

    A search never chooses `suppress_ids`.
    """

    def encode(x):
        memory = model.encode_memory(x)  # N is 1
        return name_tensors("memory", memory) | name_tensors("state", model.initial_cache(memory))

    def step(ids, parents, count, *tensors):
        """Compute the most likely next tokens of R hypotheses, and the next state.

        `ids` are their newest tokens, and `parents` which hypothesis of the step before each
        extends. `count` next tokens are returned. `tensors` are the memory and the last state.
        """
        memory, state = tensors[: len(memory_specs)], tensors[len(memory_specs) :]
        state = [tf.gather(tensor, parents) for tensor in state]
        state = tf.nest.pack_sequence_as(states[0], state)
        logits, state = model.decode_step(ids, state, tf.nest.pack_sequence_as(memories[0], memory))
        log_probs = tf.nn.log_softmax(suppress(logits, suppress_ids))  # (R, vocab)
        scores, tokens = tf.math.top_k(log_probs, count[0])  # (R, count)
        # An output cannot have the name of an input.
        return dict(scores=scores, tokens=tokens) | name_tensors("next_state", state)

    # Axes that differ between two sentences, or two steps, vary.
    memories = [model.encode_memory(tf.constant(ids)) for ids in ([[EOS]], [[UNK, EOS]])]
    states = [model.initial_cache(memories[0], rows) for rows in (1, 2)]
    states[1] = model.decode_step(tf.constant([BOS, BOS]), states[1], memories[0])[1]
    memory_specs = varying_specs("memory", *memories)
    inputs = [tf.TensorSpec([None], tf.int32, name) for name in ("ids", "parents")]
    inputs += [tf.TensorSpec([1], tf.int32, "count"), *memory_specs]
    inputs += varying_specs("state", *states)
    x = tf.TensorSpec([1, None], tf.int32, "x")
    return dict(
        encoder=tf.function(encode, input_signature=[x], autograph=False),
        step=tf.function(step, input_signature=inputs, autograph=False),
    )


def name_tensors(prefix, nest) -> dict:
    """The tensors of a nest by names: prefix_0, prefix_1 and so on."""
    return {f"{prefix}_{i}": tensor for i, tensor in enumerate(tf.nest.flatten(nest))}


def varying_specs(prefix, *nests) -> list[tf.TensorSpec]:
    """A TensorSpec, with its name, for each tensor of two nests. An axis that differs varies."""
    one, two = (name_tensors(prefix, nest) for nest in nests)
    shapes = {n: t.shape.most_specific_compatible_shape(two[n].shape) for n, t in one.items()}
    return [tf.TensorSpec(shape, one[name].dtype, name) for name, shape in shapes.items()]


def describe_tokenizer(vocab, encodes=False) -> dict:
    """Describe a tokenizer for a program without sentencepiece."""
    settings = dict(tokens=vocab.tokens(), specials=len(SPECIALS), unknown=UNK)
    if isinstance(vocab, WordVocab):
        return settings | dict(kind="words")
    proto = ModelProto.FromString(vocab.content)
    trainer, kinds = proto.trainer_spec, proto.SentencePiece

    def ids(kind):
        return [i for i, piece in enumerate(proto.pieces) if piece.type == kind]

    settings |= dict(kind="subwords", file=vocab.path.name, unknown_text=trainer.unk_surface)
    settings |= dict(bytes=ids(kinds.BYTE), unused=ids(kinds.UNUSED))
    if not encodes:
        return settings
    scores = [piece.score for piece in proto.pieces]
    usual = [scores[i] for i in ids(kinds.NORMAL)]
    return settings | dict(
        algorithm="bpe" if trainer.model_type == trainer.BPE else "unigram",
        scores=scores,
        unknown_score=min(usual, default=0.0) - UNKNOWN_PENALTY,
        symbols=ids(kinds.USER_DEFINED),
        replaced=replaced_characters(vocab.processor),
        # Whether what is replaced is composed with the marks after it, as in NFKC.
        composes=vocab.processor.normalize("ª\u0300") == "▁à",
    )


def replaced_characters(processor) -> dict:
    """Return the replacements of single characters in a sentencepiece model."""
    others = {*range(0xD800, 0xE000), ord("▁")}  # halves of characters; ▁ is a space in results
    chars = [chr(i) for i in range(1, sys.maxunicode + 1) if i not in others]
    normalized = processor.normalize([f"-{char}-" for char in chars])
    pairs = zip(chars, (text[2:-1].replace("▁", " ") for text in normalized), strict=True)
    replaced = {char: text for char, text in pairs if char != text}
    # Only repeated spaces become one.
    return replaced | ({"▁": " "} if processor.normalize("-▁▁-") == "▁-▁-" else {})


def normalization_patterns() -> dict:
    """Return the patterns of `text.normalize` as JavaScript writes them, with its flag u."""
    patterns = dict(invisible=f"[{INVISIBLE}]+", joiners=f"[{JOINERS}]+", loose=LOOSE_NON_JOINER)
    patterns["unjoined"] = rf"(?:^|[{UNJOINED}])[\p{{M}}{JOINERS}]+"
    script = re.compile(r"\\p\{(\w{3,})\}")  # shorter names are categories, as \p{Zs}
    return {name: script.sub(r"\\p{Script=\1}", text) for name, text in patterns.items()}
