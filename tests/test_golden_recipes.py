"""The recipes updated and paper: equal to the 2019 code and to PyTorch's Transformer."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from checkpoints.names_2017 import variables_by_2017_name
from conftest import GOLDEN, decoder, model_args, transformer
from hparams import make_hparams
from modules import smoothed_cross_entropy
from text.ids import BOS
from training.optimizer import FusedAdam, paper_rate
from training.step import make_train_step
from translation.search import greedy


def recipe_model(recipe, vocab_size, **sizes):
    """Make a model with the arguments of a recipe and the sizes of the golden one."""
    args = model_args(recipe) | sizes | dict(dropout_rate=0.0)
    return transformer(vocab_size, vocab_size, **args)


# The 2019 code ------------------------------------------------------


def name_of_2019(name):
    """Translate a name of `variables_by_2017_name` to that of the 2019 code."""
    name = name.replace("shared_embed/lookup_table", "shared_weight_matrix/weight_mat")
    name = name.replace("multihead_attention/conv1d", "positionwise_feedforward/dense")
    name = name.replace("multihead_attention_1/ln", "positionwise_feedforward/ln")
    name = re.sub("(decoder.*)/multihead_attention/ln", r"\1/positionwise_feedforward/ln", name)
    return name.replace("ln/Variable_1", "ln/gamma").replace("ln/Variable", "ln/beta")


@pytest.fixture
def master():
    """The golden arrays, the model, and its variables by the names of the 2019 code."""
    arrays = dict(np.load(GOLDEN / "master_a.npz", allow_pickle=False))
    theirs = json.loads(str(arrays["hparams"]))
    model = recipe_model(
        "updated",
        hidden_units=theirs["d_model"],
        ffn_units=theirs["d_ff"],
        **{name: theirs[name] for name in ("vocab_size", "num_blocks", "num_heads")},
    )
    named = {name_of_2019(name): v for name, v in variables_by_2017_name(model).items()}
    assert named.keys() == {name[2:] for name in arrays if name.startswith("w/")}
    for name, variable in named.items():
        variable.assign(arrays[f"w/{name}"])
    return arrays, model, named


def decode(model, arrays):
    """Compute the logits for the golden decoder inputs."""
    x = arrays["x"]
    return model.to_logits(
        model.decode(arrays["decoder_input"], model.encode(x), model.padding_masks(x))
    )


def mean_loss(model, arrays):
    istarget = (arrays["y"] != 0).astype(np.float32)  # (N, T)
    losses = smoothed_cross_entropy(arrays["y"], decode(model, arrays))  # (N, T)
    return tf.reduce_sum(losses * istarget) / istarget.sum()


def test_numbers_and_gradients_are_those_of_2019(master):
    arrays, model, named = master
    np.testing.assert_allclose(model.encode(arrays["x"]), arrays["memory"], atol=1e-5)
    logits = decode(model, arrays)
    np.testing.assert_allclose(logits, arrays["logits"], atol=1e-5)
    np.testing.assert_array_equal(np.argmax(logits, -1), arrays["y_hat"])
    with tf.GradientTape() as tape:
        loss = mean_loss(model, arrays)
    assert float(loss) == pytest.approx(float(arrays["loss"]), abs=1e-5)
    gradients = tape.gradient(loss, [v.value for v in named.values()])
    for name, gradient in zip(named, gradients, strict=True):
        expected = arrays[f"g/{name}"]
        difference = np.abs(tf.convert_to_tensor(gradient) - expected).max()
        assert difference <= 1e-5 * max(1, np.abs(expected).max()), name


def test_five_training_steps_are_those_of_2019(master, eager):
    arrays, model, named = master
    theirs = json.loads(str(arrays["hparams"]))
    hp = make_hparams(dict(recipe="updated"))
    optimizer = FusedAdam(0.0, 0.9, hp.beta_2, hp.epsilon)
    train_step = make_train_step(tf.distribute.get_strategy(), model, optimizer)
    x, y, losses = tf.constant(arrays["x"]), tf.constant(arrays["y"]), []
    for step in range(1, 6):
        optimizer.learning_rate.assign(paper_rate(step, theirs["lr"], theirs["warmup_steps"]))
        losses.append(float(train_step(x, y)[0]))
    np.testing.assert_allclose(losses, arrays["losses5"], atol=1e-5)
    for name, variable in named.items():
        np.testing.assert_allclose(variable, arrays[f"w5/{name}"], atol=1e-5, err_msg=name)


def test_greedy_decoding_is_that_of_2019(master):
    arrays, model, _ = master
    x, expected = arrays["x"], arrays["greedy"]
    preds = greedy(*decoder(model, x), tf.fill([len(x)], BOS), expected.shape[1])
    np.testing.assert_array_equal(preds, expected)


def test_learning_rates_are_those_of_2019():
    arrays = np.load(GOLDEN / "master_a.npz", allow_pickle=False)
    rates = [paper_rate(float(step) + 1, 0.0003, 4000) for step in arrays["noam_steps"]]
    np.testing.assert_allclose(rates, arrays["noam_lr"], rtol=1e-6)


# The paper ----------------------------------------------------------


def pytorch_arrays(model):
    """Match the arrays of PyTorch with our variables.

    Returns:
      list of (PyTorch's name, its rows or None for all, our variable, whether ours is transposed).
    """
    pairs = [("shared_embedding", None, model.enc_input.tokens.lookup_table, False)]

    def dense(name, layer):
        pairs.append((f"{name}.weight", None, layer.kernel, True))
        pairs.append((f"{name}.bias", None, layer.bias, False))

    for side, blocks in (("encoder", model.enc_blocks), ("decoder", model.dec_blocks)):
        for i, block in enumerate(blocks):
            scope = f"{side}.layers.{i}"
            attentions = {"self_attn": block.self_attention}
            if side == "decoder":
                attentions["multihead_attn"] = block.vanilla_attention
            sublayers = [*attentions.values(), block.feedforward]
            for number, sublayer in enumerate(sublayers, 1):
                norm = f"{scope}.norm{number}"
                pairs.append((f"{norm}.weight", None, sublayer.add_norm.normalize.gamma, False))
                pairs.append((f"{norm}.bias", None, sublayer.add_norm.normalize.beta, False))
            for name, attention in attentions.items():
                C = attention.num_units
                for part, layer in enumerate((attention.query, attention.key, attention.value)):
                    rows = slice(part * C, (part + 1) * C)
                    name_in = f"{scope}.{name}.in_proj"
                    pairs.append((f"{name_in}_weight", rows, layer.kernel, True))
                    pairs.append((f"{name_in}_bias", rows, layer.bias, False))
                dense(f"{scope}.{name}.out_proj", attention.output_projection)
            dense(f"{scope}.linear1", block.feedforward.inner)
            dense(f"{scope}.linear2", block.feedforward.outer)
    return pairs


def test_the_paper_is_that_of_pytorch():
    """Compare the memory, the logits, the loss and the gradients."""
    arrays = dict(np.load(GOLDEN / "paper_a.npz", allow_pickle=False))
    theirs = json.loads(str(arrays["hparams"]))
    del theirs["layer_norm_epsilon"]
    model = recipe_model("paper", **theirs)
    pairs = pytorch_arrays(model)
    assert len({id(v) for _, _, v, _ in pairs}) == len(pairs) == len(model.trainable_variables)

    def theirs_of(group, name, rows, transposed):
        array = arrays[f"{group}/{name}"][rows or slice(None)]
        return array.T if transposed else array

    for name, rows, variable, transposed in pairs:
        variable.assign(theirs_of("w", name, rows, transposed))
    np.testing.assert_allclose(model.encode(arrays["x"]), arrays["memory"], atol=1e-5)
    np.testing.assert_allclose(decode(model, arrays), arrays["logits"], atol=1e-5)
    with tf.GradientTape() as tape:
        loss = mean_loss(model, arrays)
    assert float(loss) == pytest.approx(float(arrays["loss"]), abs=1e-5)
    gradients = tape.gradient(loss, [variable.value for _, _, variable, _ in pairs])
    for (name, rows, _, transposed), gradient in zip(pairs, gradients, strict=True):
        expected = theirs_of("g", name, rows, transposed)
        difference = np.abs(tf.convert_to_tensor(gradient) - expected).max()
        assert difference <= 1e-5 * max(1, np.abs(expected).max()), name
