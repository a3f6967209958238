"""The parameters of Marian models in Hugging Face transformers: their names and their order."""

from typing import NamedTuple

import numpy as np

# So low that <PAD> has no probability, and high enough for label smoothing, whose loss contains the
# mean of all logits.
PAD_LOGIT = -100.0


class Place(NamedTuple):
    """Where a parameter of Marian is in a model here."""

    name: str  # of its variable, in `variables_by_2017_name`
    unit_axes: tuple  # the axes of the variable whose units Marian has in another order


def unit_order(hidden_units):
    """The units in the order of Marian, (C,).

    Marian has the sines of its positions in the first half of the units and the cosines in the
    second; here they alternate. So the units are sorted, in everything that reads or writes them.
    """
    units = np.arange(hidden_units)
    return np.concatenate([units[::2], units[1::2]])


def layer_places(hp) -> dict[str, Place]:
    """The parameters of all blocks, by their names in `MarianMTModel`."""
    places = {}
    attentions = dict(
        encoder=dict(self_attn="multihead_attention"),
        decoder=dict(self_attn="self_attention", encoder_attn="vanilla_attention"),
    )
    normalized = dict(encoder="multihead_attention_1", decoder="multihead_attention")
    for side, num_blocks in hp.block_counts.items():
        for i in range(num_blocks):
            name, scope = f"model.{side}.layers.{i}", f"{side}/num_blocks_{i}"
            for attention, inside in attentions[side].items():
                places |= attention_places(f"{name}.{attention}", f"{scope}/{inside}")
            places |= normalize_places(f"{name}.final_layer_norm", f"{scope}/{normalized[side]}")
            inside = f"{scope}/multihead_attention"
            places |= linear_places(f"{name}.fc1", f"{inside}/conv1d", reads_units=True)
            places |= linear_places(f"{name}.fc2", f"{inside}/conv1d_1", reads_units=False)
    return places


def attention_places(name, scope) -> dict[str, Place]:
    """The parameters of an attention and of its normalization."""
    places = normalize_places(f"{name}_layer_norm", scope)
    for letter, dense in zip("qkv", ("dense", "dense_1", "dense_2"), strict=True):
        places |= linear_places(f"{name}.{letter}_proj", f"{scope}/{dense}", reads_units=True)
    return places | linear_places(f"{name}.out_proj", f"{scope}/dense_3", reads_units=False)


def linear_places(name, scope, reads_units) -> dict[str, Place]:
    """The kernel and bias of a linear map that reads the units of the model, or writes them."""
    return {
        f"{name}.weight": Place(f"{scope}/kernel", (0,) if reads_units else (1,)),
        f"{name}.bias": Place(f"{scope}/bias", () if reads_units else (0,)),
    }


def normalize_places(name, scope) -> dict[str, Place]:
    """The parameters of a normalization."""
    return {
        f"{name}.weight": Place(f"{scope}/ln/Variable_1", (0,)),
        f"{name}.bias": Place(f"{scope}/ln/Variable", (0,)),
    }
