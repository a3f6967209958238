"""The names that the 2017 code gave to its variables. Our checkpoints use them, too."""

from variants.rnn import RecurrentModel


def variables_by_2017_name(model) -> dict:
    """The trainable variables of a model, by their names in the 2017 code.

    Those that the 2017 code does not have get names in its style.
    """
    if isinstance(model, RecurrentModel):
        return recurrent_variables(model)
    names = token_variables(model, model.enc_input.tokens, model.dec_input.tokens)
    for side, layer in ("enc", model.enc_input), ("dec", model.dec_input):
        names |= {f"{side}oder/{side}_pe/{v.name}": v for v in layer.positions.weights}
    for i, block in enumerate(model.enc_blocks):
        scope = f"encoder/num_blocks_{i}"
        names |= attention_variables(block.self_attention, f"{scope}/multihead_attention")
        names |= position_variables(model.enc_positions, i, scope)
        # The default scope of feedforward is "multihead_attention", too. TensorFlow 1 reused
        # that scope for the convolutions, and added a number for the normalization.
        names |= feedforward_variables(block.feedforward, scope, "multihead_attention_1")
    for i, block in enumerate(model.dec_blocks):
        scope = f"decoder/num_blocks_{i}"
        names |= attention_variables(block.self_attention, f"{scope}/self_attention")
        names |= position_variables(model.dec_positions, i, scope)
        names |= attention_variables(block.vanilla_attention, f"{scope}/vanilla_attention")
        names |= feedforward_variables(block.feedforward, scope, "multihead_attention")
    if model.output_bias is not None:
        names["dense/bias"] = model.output_bias
    if model.hp.normalization == "pre":
        names |= normalize_variables(model.enc_norm, "encoder")
        names |= normalize_variables(model.dec_norm, "decoder")
    return names


def recurrent_variables(model) -> dict:
    """The variables of a `RecurrentModel`."""
    names = token_variables(model, model.source_tokens, model.target_tokens)
    for scope, layer in zip(("forward", "backward"), model.encoder.directions, strict=False):
        names |= {f"encoder/{scope}/{v.name}": v for v in layer.weights}
    names |= {f"decoder/cell/{v.name}": v for v in model.decoder.cell.weights}
    score = model.decoder.score_parameters.items()
    return names | {f"decoder/score/{name}": v for name, v in score}


def token_variables(model, source_tokens, target_tokens) -> dict:
    """The variables of two `Embedding`s and of the output layer."""
    if model.hp.tied_embeddings:
        return {"shared_embed/lookup_table": target_tokens.lookup_table}
    return {
        "encoder/enc_embed/lookup_table": source_tokens.lookup_table,
        "decoder/dec_embed/lookup_table": target_tokens.lookup_table,
        **dense_variables("dense", model.output_layer),
    }


def attention_variables(attention, scope) -> dict:
    """The variables of a `MultiheadAttention`."""
    names = normalize_variables(attention.add_norm.normalize, scope)
    layers = attention.query, attention.key, attention.value, attention.output_projection
    for name, layer in zip(("dense", "dense_1", "dense_2", "dense_3"), layers, strict=True):
        names |= dense_variables(f"{scope}/{name}", layer)
    return names | {f"{scope}/{name}": v for name, v in attention.score_parameters.items()}


def position_variables(layers, i, scope) -> dict:
    """The variables of relative positions in block `i`; shared ones are in block 0."""
    if layers[i] is None or layers[i] in layers[:i]:
        return {}
    return {f"{scope}/positions/{v.name}": v for v in layers[i].weights}


def feedforward_variables(feedforward, scope, normalize_scope) -> dict:
    """The variables of a `Feedforward`."""
    names = normalize_variables(feedforward.add_norm.normalize, f"{scope}/{normalize_scope}")
    names |= dense_variables(f"{scope}/multihead_attention/conv1d", feedforward.inner)
    return names | dense_variables(f"{scope}/multihead_attention/conv1d_1", feedforward.outer)


def dense_variables(scope, layer) -> dict:
    """The variables of a dense layer, or of None."""
    return {f"{scope}/kernel": layer.kernel, f"{scope}/bias": layer.bias} if layer else {}


def normalize_variables(normalize, scope) -> dict:
    """The variables of a `Normalize`, or of None."""
    names = f"{scope}/ln/Variable", f"{scope}/ln/Variable_1"
    return dict(zip(names, (normalize.beta, normalize.gamma), strict=True)) if normalize else {}
