"""The complete model: equal to the 2017 code, causal, and the same with and without a cache."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkpoints.names_2017 import variables_by_2017_name
from conftest import (
    BFLOAT16,
    decoder,
    model_args,
    needs_bfloat16,
    recurrent_model,
    slow,
    token_by_token,
    transformer,
)
from helpers import SIZES, X, Y
from hparams import make_hparams
from model.transformer import make_model
from modules import shift_right, smoothed_cross_entropy
from text.ids import BOS, EOS
from training.optimizer import FusedAdam
from training.step import make_loss_fn, make_train_step
from translation.inference import make_search, sequence_scores, suppressed_ids
from translation.search import greedy, paper_penalty


def largest_difference(ours, theirs):
    return np.abs(np.asarray(ours) - theirs).max()


def loss_and_gradients(model, x, y, named):
    with tf.GradientTape() as tape:
        losses = smoothed_cross_entropy(y, model(x, y))  # (N, T)
        istarget = tf.cast(y != 0, losses.dtype)
        loss = tf.reduce_sum(losses * istarget) / tf.reduce_sum(istarget)
    return loss, tape.gradient(loss, [v.value for v in named.values()])


# Equal to the 2017 code ---------------------------------------------


def test_stacks_logits_and_loss_are_those_of_2017(golden):
    model, x, y = golden.model(), golden["x"], golden["y"]
    memory = model.encode(x)
    logits = model(x, y)
    assert largest_difference(memory, golden["enc"]) < 1e-5
    assert largest_difference(model.decode(shift_right(y), memory), golden["dec"]) < 1e-5
    assert largest_difference(logits, golden["logits"]) < 1e-5
    assert largest_difference(smoothed_cross_entropy(y, logits), golden["loss"]) < 1e-5
    np.testing.assert_array_equal(np.argmax(logits, -1), golden["preds"])


def test_gradients_are_those_of_2017(golden):
    model, x, y = golden.model(), golden["x"], golden["y"]
    named = variables_by_2017_name(model)
    loss, gradients = loss_and_gradients(model, x, y, named)
    assert float(loss) == pytest.approx(float(golden["mean_loss"]), abs=1e-5)
    expected = golden.group("g")
    assert expected.keys() == named.keys()
    for name, gradient in zip(named, gradients, strict=True):
        theirs = expected[name].reshape(named[name].shape)
        difference = largest_difference(tf.convert_to_tensor(gradient), theirs)
        assert difference <= 1e-5 * np.abs(theirs).max(), name


def test_five_training_steps_are_those_of_2017(golden, eager):
    model, x, y = golden.model(), tf.constant(golden["x"]), tf.constant(golden["y"])
    optimizer = FusedAdam(golden.hparams["lr"], 0.9, 0.98, 1e-8)
    step = make_train_step(tf.distribute.get_strategy(), model, optimizer)
    results = [step(x, y) for _ in range(6)]
    losses = [float(mean_loss) for mean_loss, *_ in results]
    expected = [*golden["losses5"], golden["mean_loss_after5"]]
    assert largest_difference(losses, expected) < 1e-5
    assert float(results[0][1]) == pytest.approx(float(golden["acc"]))


def test_the_parameters_after_five_steps_are_those_of_2017(golden, foreign_settings):
    """In float64, where only the rounding of the 2017 code makes a difference (8e-5).

    The true gradient of some biases of K is zero. Adam divides by the size of the gradient, so
    rounding noise becomes a full step.
    """
    foreign_settings(floatx="float64", dtype_policy="float64")
    model, x, y = golden.model(), golden["x"], golden["y"]
    optimizer = FusedAdam(golden.hparams["lr"], 0.9, 0.98, 1e-8)
    named = variables_by_2017_name(model)
    for _ in range(5):
        _, gradients = loss_and_gradients(model, x, y, named)
        optimizer.apply_gradients(zip(gradients, named.values(), strict=True))
    for name, theirs in golden.group("w5").items():
        assert largest_difference(named[name], theirs.reshape(named[name].shape)) < 1e-4, name


def test_greedy_decoding_is_that_of_2017(golden):
    model, x = golden.model(), golden["x"]
    start = tf.fill([len(x)], BOS)
    preds = greedy(*decoder(model, x), start, golden.hparams["maxlen"])
    np.testing.assert_array_equal(preds, golden["greedy"])


# Properties ---------------------------------------------------------

# The models, each with changes of its recipe that have nothing to do with each other.
CASES = {recipe: (recipe, {}) for recipe in ("updated", "paper", "tiny", "rnn", "rnn_attention")}
for recipe, positions, changes in (
    ("legacy", "learned", {}),
    ("legacy", "sinusoid", dict(attention_score="additive")),
    ("legacy", "shaw", dict(mask_padding=False)),
    ("tiny", "learned", dict(attention_score="dot", architecture="2019")),
    ("tiny", "sinusoid", dict(attention_score="additive", architecture="paper")),
    ("tiny", "paired_sinusoid", dict(attention_score="bilinear", architecture="marian")),
    ("tiny", "product", dict(attention_score="cosine")),
    ("tiny", "hierarchical", dict(attention_score="cosine_softmax")),
    ("tiny", "recurrent", dict(normalization="post")),
    ("tiny", "convolutional", dict(normalization="none")),
    ("tiny", "complex", dict(tied_embeddings=False)),
    ("tiny", "shaw", dict(num_blocks=3)),
    ("tiny", "xlnet", dict(decoder_blocks=2)),
    ("tiny", "deberta", {}),
    ("tiny", "rotary", {}),
    ("tiny", "none", {}),
):
    CASES[f"{recipe} {positions}"] = recipe, dict(positions=positions) | changes
CASES["rnn_attention additive"] = "rnn_attention", dict(attention_score="additive", cell="lstm")
of_all = pytest.mark.parametrize("case", CASES)
ONE_BLOCK = dict(maxlen=6, hidden_units=16, num_blocks=1, num_heads=2)


def make(recipe, dtype=None, **changes):
    """Make a small model, of which no bias is zero, as after training."""
    keras.utils.set_random_seed(1)
    sizes = SIZES | dict(maxlen=9, num_blocks=1, dropout_rate=0.1)
    kind = recurrent_model if "rnn" in recipe else transformer
    model = kind(13, 13, dtype=dtype, **model_args(recipe) | sizes | changes)
    for variable in model.trainable_variables:
        variable.assign_add(np.random.normal(scale=0.1, size=variable.shape))
    return model


@functools.cache
def model_of(case):
    """The model of a case, and its logits. No test changes it."""
    recipe, changes = CASES[case]
    model = make(recipe, **changes)
    return model, model(X, Y).numpy()


@of_all
def test_token_by_token_equals_all_at_once(case):
    """The decoder with a cache gives the same logits as `call`: they do not see later tokens.

    The three hypotheses of a sentence share its memory.
    """
    (model, _), targets = model_of(case), np.random.default_rng(0).integers(4, 13, (6, 3), np.int32)
    targets[0] = [5, 3, 0]
    expected = model(np.repeat(X, 3, axis=0), targets)
    np.testing.assert_allclose(token_by_token(model, X, targets), expected, atol=2e-5)


@of_all
def test_padding_and_other_sentences_change_nothing(case):
    """With masks from ids, the second sentence needs no padding. The other masks: see below."""
    model, logits = model_of(case)
    from_ids = model.hp.mask_from == "ids"
    alone = model(X[1:, : 3 if from_ids else 6], Y[1:])
    np.testing.assert_allclose(alone, logits[1:], atol=2e-5)
    if from_ids:
        others = model(*(np.pad(ids, [(0, 1), (0, 3)]) for ids in (X, Y)))
        np.testing.assert_allclose(others[:2, :6], logits, atol=2e-5)
        assert np.isfinite(others).all()  # also of a sentence of padding


@of_all
def test_each_parameter_has_a_name_and_a_gradient(case):
    """The true gradient of some biases of K is zero."""
    model, _ = model_of(case)
    named = variables_by_2017_name(model)
    assert {id(v) for v in named.values()} == {id(v) for v in model.trainable_variables}
    assert len(named) == len(model.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, Y) ** 2)
    gradients = tape.gradient(loss, [v.value for v in named.values()])
    for name, gradient in zip(named, map(tf.convert_to_tensor, gradients), strict=True):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 1e-6 or name.endswith("dense_1/bias"), name


@pytest.mark.parametrize("case", ["legacy learned", "paper", "tiny"])
def test_logits_depend_on_all_earlier_tokens_and_on_no_later_one(case):
    """Shown by the gradient of the logits with respect to the embedded decoder inputs."""
    (model, _), inputs = model_of(case), shift_right(Y)
    memory = model.encode(X)
    with tf.GradientTape() as tape:
        dec = embedded = model.dec_input(inputs)
        tape.watch(embedded)
        for block, positions in zip(model.dec_blocks, model.dec_positions, strict=True):
            masks = model.padding_masks(inputs), model.padding_masks(X)
            dec = block(dec, memory, *masks, positions=positions)
        probe = tf.reduce_sum(model.to_logits(dec)[:, 2] * np.random.normal(size=(2, 13)))
    gradient = np.abs(tape.gradient(probe, embedded)).max(-1)  # (N, T)
    assert (gradient[:, :3] > 0).all() and not gradient[:, 3:].any()


@pytest.mark.parametrize("causality", [True, False])
def test_causality_hides_later_targets_in_training(causality):
    """Without it they are seen in training; never in decoding, nor in a score."""
    model = make("tiny", dropout_rate=0.0, causality=causality)
    changed = Y.copy()
    changed[:, 3] = 4

    def difference(training):
        ours, theirs = (model(X, y, training=training)[:, :4] for y in (Y, changed))
        return largest_difference(ours, theirs)

    assert difference(training=False) == 0
    assert difference(training=True) > 1e-4 if not causality else difference(training=True) == 0
    np.testing.assert_allclose(token_by_token(model, X, Y), model(X, Y), atol=1e-5)


def test_tied_logits_of_marian_have_a_bias():
    (model, _), dec = model_of("tiny paired_sinusoid"), np.random.normal(size=(2, 16))
    expected = model.dec_input.tokens.to_logits(model.dec_norm(dec)) + model.output_bias
    np.testing.assert_allclose(model.to_logits(dec), expected, atol=1e-6)


@pytest.mark.parametrize("mask_padding", [True, False])
def test_without_masks_padding_gets_attention(mask_padding):
    model = make("updated", mask_padding=mask_padding)
    attention, memory = model.dec_blocks[0].vanilla_attention, model.encode(X)
    weights = attention.attention_weights(memory, memory, model.padding_masks(X))
    on_padding = np.array(weights)[1][..., X[1] == 0].sum(-1)  # (h, T)
    assert (on_padding == 0).all() if mask_padding else (on_padding > 0.05).all()


# Where dropout acts besides the embeddings: on weights, and on outputs of sublayers.
DROPOUT = {"2017": (0.2, 0), "2019": (0.2, 0), "paper": (0.2, 0.2), "modern": (0, 0.2)}


@pytest.mark.parametrize("architecture", DROPOUT)
@pytest.mark.parametrize("attention_dropout", [0.0, 0.3])
def test_dropout_is_where_the_architecture_puts_it(architecture, attention_dropout):
    more = dict(dropout_rate=0.2, attention_dropout=attention_dropout)
    model = transformer(13, 13, **ONE_BLOCK, architecture=architecture, **more)
    weights, outputs = DROPOUT[architecture]
    (enc,), (dec,) = model.enc_blocks, model.dec_blocks
    attentions = [enc.self_attention, dec.self_attention, dec.vanilla_attention]
    assert {layer.dropout.rate for layer in attentions} == {attention_dropout or weights}
    sublayers = [*attentions, enc.feedforward, dec.feedforward]
    assert {layer.add_norm.dropout.rate for layer in sublayers} == {outputs}
    assert model.enc_input.dropout.rate == model.dec_input.dropout.rate == 0.2


def test_dropout_acts_on_weights_before_values_and_on_outputs_before_the_residual(dropout_inputs):
    """The order in the encoder: embedding, weights, heads, feed-forward."""
    model = transformer(13, 13, **ONE_BLOCK, dropout_rate=0.2, architecture="paper")
    logits = model(X, Y, training=True)
    np.testing.assert_allclose(logits, model(X, Y), atol=1e-5)
    assert len(dropout_inputs) == 4 + 6
    embedded, _ = model.enc_input.embed(X, start=0, state=())
    (block,), masks = model.enc_blocks, model.padding_masks(X)
    attention = block.self_attention
    weights = attention.attention_weights(embedded, embedded, masks)
    heads = attention(embedded, embedded, masks)  # after residual and normalization
    attended = attention.add_norm.normalize(embedded + dropout_inputs[2])
    fed = block.feedforward.add_norm.normalize(heads + dropout_inputs[3])
    expected = (dropout_inputs[0], embedded), (dropout_inputs[1], weights)
    for ours, theirs in (*expected, (attended, heads), (fed, model.encode(X))):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_dropout_is_on_in_the_training_step(eager):
    model = make("paper")
    step = make_train_step(tf.distribute.get_strategy(), model, keras.optimizers.SGD(0.0))
    assert len({float(step(X, Y)[0]) for _ in range(3)}) == 3


def test_label_smoothing_of_training_and_of_the_development_set(eager):
    """Without it, the loss is the mean of -log p of the targets."""
    model = transformer(13, 13, **model_args("tiny") | SIZES | dict(dropout_rate=0.0))
    logp = tf.nn.log_softmax(model(X, Y)).numpy()
    of_targets = np.take_along_axis(logp, Y[..., None], axis=-1)[..., 0][Y != 0]
    total, count = make_loss_fn(model, smoothing=0.0)(X, Y)
    assert float(total / tf.cast(count, tf.float32)) == pytest.approx(-of_targets.mean(), rel=1e-5)
    sgd = keras.optimizers.SGD(0.0)
    hp = make_hparams(dict(label_smoothing=0.0))
    step = make_train_step(tf.distribute.get_strategy(), model, sgd, hp)
    assert float(step(X, Y).mean_loss) == pytest.approx(-of_targets.mean(), rel=1e-5)


@slow
@needs_bfloat16
@pytest.mark.parametrize("recipe", ["legacy", "tiny", "rnn_attention"])
def test_bfloat16_is_near_float32_and_learns(recipe):
    flags = dict(recipe=recipe, hidden_units=32, maxlen=8)
    flags |= {} if "rnn" in recipe else dict(num_blocks=2, num_heads=4)
    x, y = np.random.default_rng(0).integers(4, 50, (2, 3, 8), np.int32)
    x[0] = 0  # a row of padding alone
    y[1, 5:] = 0
    models = []
    for precision in ("float32", "bfloat16"):
        keras.utils.set_random_seed(0)
        models.append(make_model(make_hparams(flags | dict(precision=precision)), 50, 50))
    assert keras.config.dtype_policy().name == "float32"
    exact, near = (tf.cast(model(x, y), tf.float32) for model in models)
    assert 0 < largest_difference(exact, near) < 0.1
    assert models[1](x, y).dtype == "bfloat16"
    assert all(weight.dtype == "float32" for weight in models[1].trainable_variables)
    optimizer = FusedAdam(0.01)
    optimizer.build(models[1].trainable_variables)
    step = make_train_step(tf.distribute.get_strategy(), models[1], optimizer)
    losses = [float(step(x, y)[0]) for _ in range(30)]
    assert losses[-1] < losses[0] / 2


# Keras --------------------------------------------------------------


@pytest.mark.parametrize("case", ["legacy learned", "paper", "tiny recurrent", "rnn_attention"])
def test_the_constructor_makes_all_parameters(case):
    """Without a call, which needs no symbolic trace of the layers then."""
    recipe, changes = CASES[case]
    model = make(recipe, **changes)
    assert all(layer.built for layer in model._flatten_layers())
    before = [v.path for v in model.variables]
    model.build((None, None))
    model(X, Y)
    assert [v.path for v in model.variables] == before
    if model.hp.tied_embeddings and "rnn" not in case:  # logits start near 1
        stddev = np.std(
            transformer(500, 500, **model.hp.model_fields()).enc_input.tokens.lookup_table
        )
        assert stddev == pytest.approx(model.hp.hidden_units**-0.5, rel=0.1)


@pytest.mark.parametrize("recipe, dtype", [("tiny", "mixed_bfloat16"), ("rnn", "float32")])
def test_a_keras_file_holds_the_model(recipe, dtype, tmp_path):
    model, path = make(recipe, dtype if BFLOAT16 else None), str(tmp_path / "model.keras")
    model.save(path)
    keras.utils.set_random_seed(2)  # other initial values
    loaded = keras.models.load_model(path)
    assert type(loaded) is type(model) and loaded.get_config() == model.get_config()
    assert loaded.layers[0].dtype_policy.name == model.dtype_policy.name
    np.testing.assert_array_equal(loaded(X, Y), model(X, Y))


@pytest.mark.parametrize("case", ["tiny recurrent", "tiny convolutional", "rnn_attention additive"])
def test_beam_search_keeps_the_state_of_each_hypothesis(case, eager):
    """The best hypothesis has the score that the model gives to it at once, without a penalty."""
    recipe, changes = CASES[case]
    sizes = dict(hidden_units=8) if "rnn" in recipe else SIZES
    hp = make_hparams(dict(recipe=recipe, vocab_size=13, alpha=0.0) | sizes | changes)
    keras.utils.set_random_seed(3)
    model, x = make_model(hp, 13, 13), np.random.default_rng(0).integers(4, 13, (4, 5), np.int32)
    x[:, -1] = EOS
    preds, scores = make_search(model, hp, 4)(x)
    limits, suppressed = np.full(4, hp.max_output_tokens(5), np.int32), suppressed_ids(hp, 4)
    args = limits, paper_penalty(0.0), suppressed
    expected = sequence_scores(model, x, preds[:, 0], *args)
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-4)


# The Python interface -----------------------------------------------


@pytest.fixture
def foreign_settings():
    """A function that changes settings of Keras, as another program or cell may have done."""
    names = ("floatx", "epsilon", "dtype_policy")
    before = {name: getattr(keras.config, name)() for name in names}

    def change(**settings):
        for name, value in settings.items():
            getattr(keras.config, f"set_{name}")(value)

    yield change
    change(**before)


@slow
def test_settings_of_keras_change_no_model(foreign_settings):
    """Neither its dtypes nor its numbers, in training and decoding."""
    sizes = dict(hidden_units=8, vocab_size=12, seed=1)
    small = sizes | dict(recipe="tiny", num_heads=2, num_blocks=1)
    kinds = [small | dict(positions=name) for name in ("t5", "complex")]
    kinds += [small | dict(attention_score="cosine"), sizes | dict(recipe="rnn_attention")]
    x = np.array([[5, 6, 3], [8, 3, 0]], np.int32)

    def compute(flags):
        keras.utils.set_random_seed(1)
        model = make_model(make_hparams(flags), 12, 12)
        return np.stack([model(x, x, training=True), token_by_token(model, x, x)])

    expected = [compute(flags) for flags in kinds]
    foreign_settings(floatx="float64", epsilon=0.5, dtype_policy="mixed_bfloat16")
    for flags, array in zip(kinds, expected, strict=True):
        np.testing.assert_array_equal(compute(flags), array, err_msg=str(flags))
