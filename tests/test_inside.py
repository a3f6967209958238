"""What the page shows of the inside of a model: attention, likely tokens, the beam as a tree."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import slow, slow_unless
from helpers import load
from hparams import make_hparams
from model.transformer import make_model
from server.inside import InsideView, beam_tree
from support.errors import InputError
from text.ids import EOS, SPECIALS, UNK, RaggedIds
from translation.attention_maps import append_eos, attention_maps
from translation.inference import make_search, search_arguments, token_log_probs
from translation.search import Beam, Ensemble, paper_penalty
from translation.translator import Translator

SMALL = dict(recipe="tiny", vocab_size=13, hidden_units=16, ffn_units=32, num_heads=2, num_blocks=1)
LIMITS = dict(max_output_ratio=0.1)  # of the tokens of a translation
TEXT = "Der Hund schläft nicht."

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def tiny(trained):
    """The view of a small Transformer."""
    loaded = load(dict(logdir=trained("tiny")["logdir"], beam=3) | LIMITS)
    return InsideView(Translator(loaded, nbest=3))


def view_of(tiny, model=None, recipe="tiny", nbest=2, **flags):
    """The view of a model without training, with the vocabulary and translations of another one."""
    hp = make_hparams(dict(recipe=recipe, hidden_units=16, beam=2) | LIMITS | flags)
    model = model or make_model(hp, *map(len, tiny.loaded.vocabs))
    see = InsideView(Translator(tiny.loaded._replace(hp=hp, model=model), nbest))
    see.translate = tiny.translate
    return see


# Beam search --------------------------------------------------------


def paths(steps):
    """The nodes on the way to each complete hypothesis, by its rank."""
    found = {}
    for i, nodes in enumerate(steps):
        for node in nodes:
            if node["rank"]:
                way = [node]
                for earlier in reversed(steps[:i]):
                    way.append(earlier[way[-1]["parent"]])
                found[node["rank"]] = way[::-1]
    return found


@pytest.mark.parametrize(
    "flags, prefix",
    [
        (dict(beam=4), []),
        pytest.param(dict(beam=2, alpha=0.0), [], marks=slow),
        pytest.param(dict(beam=3, alpha=2.0), [], marks=slow),
        (dict(beam=4, no_repeat_ngram=1), [7, UNK]),
        (dict(beam=3), [5] * 20),  # more tokens than a translation may have
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
        assert sum(node["fate"] != "ended" for node in nodes) <= beam
        parents = {node["parent"] for node in steps[i + 1]} if i + 1 < len(steps) else set()
        for j, node in enumerate(nodes):
            assert (node["fate"] == "kept") == (j in parents)
            assert node["fate"] != "open" or i + 1 == len(steps)
            assert not node["rank"] or node["fate"] == "ended"
            assert node["fate"] != "ended" or j < beam  # only the best K of a step may end
        assert nodes == sorted(nodes, key=lambda node: -node["log_prob"]) != []


def test_the_tree_of_a_sentence(tiny):
    steps = tiny.beam(TEXT, "They")["steps"]
    ranked = {node["rank"]: node for nodes in steps for node in nodes if node["rank"]}
    hypotheses = tiny.translate(TEXT, "They").hypotheses
    expected = {i: pytest.approx(own.score, abs=1e-3) for i, own in enumerate(hypotheses, 1)}
    assert {rank: node["score"] for rank, node in ranked.items()} == expected
    assert json.dumps(steps) and steps[0][0]["parent"] == -1
    answer = view_of(tiny, beam=1, nbest=1).beam(TEXT)
    assert answer["steps"] == [] and "There is no beam" in answer["note"]


# Attention and likely tokens ----------------------------------------


@pytest.mark.parametrize("recipe", slow_unless(["tiny"], ["legacy", "tiny"]))
def test_each_attention_map_is_that_of_the_model(trained, tiny, recipe):
    """With words and padding to a constant length, and with subwords and two blocks."""
    if recipe == "tiny":
        see = view_of(tiny, num_blocks=2, num_heads=4)
    else:
        see = InsideView(Translator(load(dict(logdir=trained(recipe)["logdir"], beam=2)), nbest=2))
    model, hp = see.loaded.model, see.loaded.hp
    translation = see.translate(TEXT, "")
    x, y = translation.ids, append_eos(translation.hypotheses[1].ids, hp)
    padded = (RaggedIds.from_lists([ids]).pad(width=hp.pad_to) for ids in (x, y))
    maps = attention_maps(model, *padded)
    x_tokens, y_tokens = (
        [*map(vocab.id_to_token, ids)] for vocab, ids in zip(see.loaded.vocabs, (x, y), strict=True)
    )
    blocks, heads = hp.num_blocks, hp.num_heads
    for kind, rows, columns in (
        ("encoder", x_tokens, x_tokens),
        ("decoder", y_tokens, [SPECIALS[2], *y_tokens[:-1]]),
        ("cross", y_tokens, x_tokens),
    ):
        for block, head in ((1, 1), (blocks, 0), (blocks, heads)):
            own = np.asarray(getattr(maps, kind)[block - 1])[0, :, : len(rows), : len(columns)]
            answer = see.attention(TEXT, "", 2, kind, block, head)
            assert (answer["rows"], answer["columns"]) == (rows, columns)
            assert answer["kinds"][kind] == dict(blocks=blocks, heads=heads)
            expected = own[head - 1] if head else own.mean(axis=0)
            assert np.allclose(answer["weights"], expected, atol=6e-4)
    answer = see.attention(TEXT)
    assert [answer[name] for name in ("kind", "block", "head")] == ["cross", blocks, 0]
    for fields in (dict(kind="other"), dict(block=3), dict(head=1000)):
        with pytest.raises(InputError, match="one of these kinds, blocks and heads: {'cross'"):
            see.attention(TEXT, **fields)


def test_the_most_likely_tokens_are_those_of_the_model(tiny):
    translation = tiny.translate(TEXT, "")
    y = append_eos(translation.hypotheses[0].ids, tiny.loaded.hp)
    steps = tiny.steps(TEXT)["steps"]
    log_probs = token_log_probs(tiny.loaded.model, translation.ids[None], np.array([y]))[0]
    assert len(steps) == len(y) and steps[-1]["token"] == SPECIALS[EOS]
    for step, log_prob in zip(steps, log_probs, strict=True):
        assert step["probability"] == pytest.approx(np.exp(log_prob), abs=1e-3)
        values = [probability for _, probability in step["best"]]
        assert values == sorted(values, reverse=True) and len(values) == 5
        assert sum(values) < 1.001
        if [step["token"], step["probability"]] not in [list(pair) for pair in step["best"]]:
            assert step["probability"] <= values[-1]


# Other models -------------------------------------------------------


def test_a_recurrent_model_shows_what_it_has(tiny):
    see = view_of(tiny, recipe="rnn_attention")
    answer = see.attention(TEXT)
    assert answer["kinds"] == dict(cross=dict(blocks=1, heads=1))
    assert np.allclose(np.sum(answer["weights"], axis=1), 1, atol=0.01)
    with pytest.raises(InputError, match="one of these kinds, .* {'cross': "):
        see.attention(TEXT, kind="encoder")
    see = view_of(tiny, recipe="rnn")
    answer = see.attention(TEXT)
    assert answer["kinds"] == {} and "has no attention" in answer["note"]
    assert see.steps(TEXT)["steps"] and see.beam(TEXT)["steps"]


def test_an_ensemble_shows_the_attention_of_its_first_model(tiny):
    both = view_of(tiny, Ensemble([tiny.loaded.model] * 2))
    answer = both.attention(TEXT)
    assert "the first of 2 models" in answer["note"]
    assert answer["weights"] == tiny.attention(TEXT)["weights"]
    assert len(both.steps(TEXT)["steps"]) == len(tiny.steps(TEXT)["steps"])


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(text="  "), "has 0 tokens. .* of 1 to 99"),
        (dict(text="xy " * 60), "has 180 tokens"),
        (dict(text=TEXT, translation=4), "translation must be at most 3"),
    ],
)
def test_sentences_that_cannot_be_shown(tiny, fields, message):
    for show in (tiny.attention, tiny.steps, tiny.beam):
        if show != tiny.beam or "translation" not in fields:
            with pytest.raises(InputError, match=message):
                show(**fields)
