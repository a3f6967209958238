"""Export the model in logdir for other programs.

    python export.py --logdir logdir --output exported/1
    python export.py --logdir logdir --output exported/ctranslate2 --format ctranslate2
    python export.py --logdir logdir --output exported/huggingface --format huggingface

The TensorFlow SavedModel takes sentences and returns translations. It contains the tokenizer:
a program that loads it needs only tensorflow and tensorflow-text. The CTranslate2 model takes
tokens and returns tokens. Its folder also contains the sentencepiece model, if there is one. The
Hugging Face folder is for the Auto classes of transformers, or for converters to other formats."""

import dataclasses
import os
import shutil
from pathlib import Path

from choices import EXPORT_FORMATS, quantization_flag
from hparams import Hyperparams, read_trained
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.files import check_utf8, durable_replace, fsync, make_folder, temp_path
from runtime.flags import Flags, check_not_given, flag


@dataclasses.dataclass(frozen=True)
class ExportFlags(Flags):
    """The flags of this script."""

    output: str = flag("exported/1", "folder to write, which must not exist yet", path=True)
    format: str = flag("saved_model", "format of the exported model", choices=EXPORT_FORMATS)
    quantization: str = quantization_flag("format", EXPORT_FORMATS)


def check_start(flags):
    """Raise InputError if there is no model or the output exists, before TensorFlow is loaded."""
    options, flags = ExportFlags.split(flags)
    if hp := read_trained(flags):
        options.check_needs(hp)
    check_new(options.output)


def check_new(path):
    """Raise InputError if the output exists, also as a link to a missing file."""
    if os.path.lexists(path):
        raise InputError(f"{path}: already exists. Delete it, or choose another --output")


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    flags = parse_flags(__doc__, Hyperparams, ExportFlags, reads_model=True, check=check_start)

import tensorflow as tf

from inference import describe_checkpoints, describe_decoding, load_model


def main(flags):
    """Write the model.

    Args:
      flags: dict that `parse_flags` returned.

    Raises:
      OSError: the output cannot be written.
    """
    options, flags = ExportFlags.split(flags)
    choice = EXPORT_FORMATS[options.format]
    check_not_given(flags, choice.refused, "is given to the program that loads the model")
    output = Path(options.output)
    check_new(output)
    check_utf8(output)
    loaded = load_model(flags)
    options.check_needs(loaded.hp)
    more = dict(quantization=options.quantization) if choice.quantizes else {}
    make_folder(output.parent)
    temporary = temp_path(output)
    try:
        choice.load()(loaded, temporary, **more)
        for path in filter(Path.is_file, temporary.rglob("*")):
            fsync(path)
        durable_replace(temporary, output)
    except (OSError, tf.errors.OpError) as error:
        reason, *_ = str(error).splitlines()
        raise OSError(
            f"{output}: cannot be written ({reason}). Free some space, or choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    description = describe_checkpoints(loaded.paths)
    description = describe_decoding(loaded) if choice.has_search else description
    print(", ".join([f"{output}: {description}", *more.values()]))


if __name__ == "__main__":
    run_script(main, flags)
