"""What the page shows of the inside of a model: attention, likely tokens, the beam as a tree."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import slow, slow_unless
from helpers import load, read_test_sentences
from hparams import make_hparams
from model.transformer import make_model
from server.inside import InsideView, beam_tree
from support.errors import InputError
from text.ids import EOS, SPECIALS, UNK, RaggedIds
from translation.attention_maps import append_eos, attention_maps
from translation.ensemble import Ensemble
from translation.inference import make_search, search_arguments, token_log_probs
from translation.search import Beam, paper_penalty
from translation.translator import Translator

SMALL = dict(recipe="tiny", vocab_size=13, hidden_units=16, ffn_units=32, num_heads=2, num_blocks=1)
LIMITS = dict(max_output_ratio=0.1)  # of the tokens of a translation


def view(loaded, nbest=3):
    """The view of a loaded model."""
    return InsideView(Translator(loaded, nbest))


def view_of(tiny, loaded, nbest):
    """The view of another model, with the translations of the trained one."""
    see = view(loaded, nbest)
    see.translate = tiny[0].translate
    return see


@pytest.fixture(scope="module")
def tiny(trained):
    """The view of a small Transformer, and a sentence."""
    flags = trained("tiny")
    return view(load(dict(logdir=flags["logdir"], beam=3))), first_sentence(flags)


@pytest.fixture(scope="module")
def words(trained):
    """A small Transformer of words, which pads sentences to a constant length."""
    return load(dict(logdir=trained("legacy")["logdir"], beam=2))


def first_sentence(flags):
    return read_test_sentences(flags["source_test"])[0]


def paths(steps):
    """The nodes on the way to each complete hypothesis, by its rank."""
    found = {}
    for i, nodes in enumerate(steps):
        for node in nodes:
            if node["rank"]:
                way, parent = [node], node["parent"]
                for earlier in reversed(steps[:i]):
                    way.append(earlier[parent])
                    parent = way[-1]["parent"]
                found[node["rank"]] = way[::-1]
    return found


# Beam search -------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, prefix",
    [
        (dict(beam=4), []),
        pytest.param(dict(beam=2, alpha=0.0), [], marks=slow),
        pytest.param(dict(beam=3, alpha=2.0), [], marks=slow),
        (dict(beam=4, no_repeat_ngram=1), []),
        (dict(beam=4), [7, UNK]),
        (dict(beam=4), [7, 8]),
        (dict(beam=4), [5] * 20),  # more tokens than a translation may have
    ],
)
def test_the_tree_has_the_translations_of_beam_search(eager, flags, prefix):
    hp = make_hparams(SMALL | LIMITS | flags)
    keras.utils.set_random_seed(0)
    model = make_model(hp, 13, 13)
    x = np.random.default_rng(0).integers(4, 13, (1, 6), np.int32)
    x[:, -1] = EOS
    prefixes = tf.constant([prefix], tf.int32)
    nbest = max(1, hp.beam - 2)
    ids, scores = make_search(model, hp, hp.beam, nbest, prefixed=True)(x, prefixes)
    args = search_arguments(model, hp, tf.constant(x), hp.beam, prefixes)
    steps = beam_tree(Beam(**args, beam=hp.beam, penalty=paper_penalty(hp.alpha), nbest=nbest))
    assert len(steps) == ids.shape[2]  # it stops at the same step
    best = paths(steps)
    assert len(best) == np.isfinite(scores).sum()
    for rank, nodes in best.items():
        found = [node["token"] for node in nodes]
        padding = [0] * (ids.shape[2] - len(found))
        assert found + padding == ids[0, rank - 1].numpy().tolist()
        assert nodes[-1]["score"] == pytest.approx(float(scores[0, rank - 1]), abs=1e-5)
        log_probs = [node["log_prob"] for node in nodes]
        assert log_probs == sorted(log_probs, reverse=True)  # they only fall
    check_fates(steps, hp.beam)


def check_fates(steps, beam):
    """Exactly the nodes that are `kept` have children, and only those at the end are `open`."""
    for i, nodes in enumerate(steps):
        assert 0 < len(nodes) <= 2 * beam
        assert sum(node["fate"] != "ended" for node in nodes) <= beam
        parents = {node["parent"] for node in steps[i + 1]} if i + 1 < len(steps) else set()
        for j, node in enumerate(nodes):
            assert (node["fate"] == "kept") == (j in parents)
            assert node["fate"] != "open" or i + 1 == len(steps)
            assert not node["rank"] or node["fate"] == "ended"
            assert node["fate"] != "ended" or j < beam  # only the best K of a step may end
        assert nodes == sorted(nodes, key=lambda node: -node["log_prob"])


@pytest.mark.parametrize("prefix", ["", "They"])
def test_the_tree_of_a_sentence(tiny, prefix):
    see, text = tiny
    answer = see.beam(text, prefix)
    translation = see.translate(text, prefix)
    ranked = {node["rank"]: node for nodes in answer["steps"] for node in nodes if node["rank"]}
    assert sorted(ranked) == [1, 2, 3]
    for rank, hypothesis in enumerate(translation.hypotheses, 1):
        assert ranked[rank]["score"] == pytest.approx(hypothesis.score, abs=1e-3)
    assert answer["note"] == "" and json.dumps(answer)
    assert answer["steps"][0][0]["parent"] == -1


def test_a_search_without_a_tree_says_so(tiny):
    see, text = tiny
    answer = view_of(tiny, see.loaded.with_hp(beam=1), nbest=1).beam(text)
    assert answer["steps"] == [] and "There is no beam" in answer["note"]


# Attention and likely tokens ----------------------------------------------------


@pytest.mark.parametrize("recipe", slow_unless(["tiny"], ["legacy", "tiny"]))
def test_each_attention_map_is_that_of_the_model(tiny, words, recipe):
    """With words and padding to a constant length, and with subwords and two blocks."""
    text, see = "Der Hund schläft nicht.", view(words, nbest=2)
    if recipe == "tiny":
        see = view_of(tiny, untrained(tiny, num_blocks=2, num_heads=4), 2)
    loaded = see.loaded
    translation = see.translate(text, "")
    x, y = translation.ids, append_eos(translation.hypotheses[1].ids, loaded.hp)
    padded = (RaggedIds.from_lists([ids]).pad(width=loaded.hp.pad_to) for ids in (x, y))
    maps = attention_maps(loaded.model, *padded)
    x_tokens, y_tokens = (
        [*map(vocab.id_to_token, ids)] for vocab, ids in zip(loaded.vocabs, (x, y), strict=True)
    )
    axes = dict(
        encoder=(x_tokens, x_tokens),
        decoder=(y_tokens, [SPECIALS[2], *y_tokens[:-1]]),
        cross=(y_tokens, x_tokens),
    )
    blocks, heads = loaded.hp.num_blocks, loaded.hp.num_heads
    for kind, (rows, columns) in axes.items():
        for block in range(1, blocks + 1):
            own = np.asarray(getattr(maps, kind)[block - 1])[0, :, : len(rows), : len(columns)]
            for head in (0, 1, heads):
                answer = see.attention(text, "", 2, kind, block, head)
                assert (answer["rows"], answer["columns"]) == (rows, columns)
                assert answer["kinds"][kind] == dict(blocks=blocks, heads=heads)
                expected = own[head - 1] if head else own.mean(axis=0)
                assert np.allclose(answer["weights"], expected, atol=6e-4)
    answer = see.attention(text)
    assert [answer[name] for name in ("kind", "block", "head")] == ["cross", blocks, 0]
    causal = see.attention(text, kind="decoder")["weights"]
    assert np.array_equal(causal, np.tril(causal))


def test_the_most_likely_tokens_are_those_of_the_model(tiny):
    see, text = tiny
    translation = see.translate(text, "")
    y = append_eos(translation.hypotheses[0].ids, see.loaded.hp)
    steps = see.steps(text)["steps"]
    log_probs = token_log_probs(see.loaded.model, translation.ids[None], np.array([y]))[0]
    assert len(steps) == len(y) and steps[-1]["token"] == SPECIALS[EOS]
    for step, log_prob in zip(steps, log_probs, strict=True):
        assert step["probability"] == pytest.approx(np.exp(log_prob), abs=1e-3)
        values = [probability for _, probability in step["best"]]
        assert values == sorted(values, reverse=True) and len(values) == 5
        assert sum(values) < 1.001
        if [step["token"], step["probability"]] not in [list(pair) for pair in step["best"]]:
            assert step["probability"] <= values[-1]


# Other models -------------------------------------------------------------------


def untrained(tiny, recipe="tiny", **flags):
    """A model without training, with the vocabulary of the trained one."""
    see, _ = tiny
    hp = make_hparams(dict(recipe=recipe, hidden_units=16, beam=2) | LIMITS | flags)
    model = make_model(hp, *map(len, see.loaded.vocabs))
    return see.loaded._replace(hp=hp, model=model)


def test_a_recurrent_model_shows_what_it_has(tiny):
    see = view_of(tiny, untrained(tiny, recipe="rnn_attention"), 2)
    answer = see.attention("Der Hund schläft.")
    assert answer["kinds"] == dict(cross=dict(blocks=1, heads=1))
    assert np.allclose(np.sum(answer["weights"], axis=1), 1, atol=0.01)
    with pytest.raises(InputError, match="one of these kinds, .* {'cross': "):
        see.attention("Der Hund schläft.", kind="encoder")

    see = view_of(tiny, untrained(tiny, recipe="rnn"), 2)
    answer = see.attention("Der Hund schläft.")
    assert answer["kinds"] == {} and "has no attention" in answer["note"]
    assert see.steps("Der Hund schläft.")["steps"]
    assert see.beam("Der Hund schläft.")["steps"]


def test_an_ensemble_shows_the_attention_of_its_first_model(tiny):
    see, text = tiny
    models = Ensemble([see.loaded.model] * 2)
    both = view_of(tiny, see.loaded._replace(model=models), 3)
    answer = both.attention(text)
    assert "the first of 2 models" in answer["note"]
    assert answer["weights"] == see.attention(text)["weights"]
    for part in ("steps", "beam"):
        own, steps = (getattr(look, part)(text)["steps"] for look in (see, both))
        assert len(own) == len(steps)


# Requests that are refused -------------------------------------------------------


@pytest.mark.parametrize("part", ["attention", "steps", "beam"])
def test_sentences_that_cannot_be_shown(tiny, part):
    see, _ = tiny
    for text in ("", "  "):
        with pytest.raises(InputError, match="has 0 tokens. .* of 1 to 99"):
            getattr(see, part)(text)
    with pytest.raises(InputError, match="has 180 tokens"):
        getattr(see, part)("xy " * 60)
    if part != "beam":
        with pytest.raises(InputError, match="translation must be at most 3"):
            getattr(see, part)("Der Hund schläft.", translation=4)


@pytest.mark.parametrize("fields", [dict(kind="other"), dict(block=3), dict(head=1000)])
def test_attention_that_the_model_lacks(tiny, fields):
    see, text = tiny
    with pytest.raises(InputError, match="Choose one of these kinds, blocks and heads: {'cross'"):
        see.attention(text, **fields)
