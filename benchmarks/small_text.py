"""Train the recipe tiny on small texts, with its defaults, and append its BLEU to small_text.md.

    REAL_TEXT=DIR python benchmarks/small_text.py multi30k 300 1000 3000 10000
    python benchmarks/small_text.py english-japanese 300 1000 3000 10000

The text is the first pairs of Multi30k, German to English, scored on its `val`; or pairs from the
small English-Japanese grammar in this file, scored on 500 others. The numbers are training pairs.
The recipe chooses the vocabulary, the epochs and the warm-up. All further arguments go to prepro.py
and train.py, for example to try a method:

    REAL_TEXT=DIR python benchmarks/small_text.py multi30k 3000 --normalization pre --seed 1
"""

import argparse
import itertools
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from harness import ROOT, corpus_folder

WORK = ROOT / "benchmarks" / "work" / "small_text"
TABLE = ROOT / "benchmarks" / "small_text.md"
HEADER = (
    "| text | pairs | flags | vocab_size | epochs | steps | warm-up | training | sacreBLEU |"
    " greedy, one checkpoint |\n|---|---|---|---|---|---|---|---|---|---|\n"
)

# English and Japanese -----------------------------------------------------------

SUBJECTS = [
    ("I", "私"),
    ("he", "彼"),
    ("she", "彼女"),
    ("the teacher", "先生"),
    ("the doctor", "医者"),
    ("the student", "学生"),
    ("my friend", "友達"),
    ("my mother", "母"),
    ("my father", "父"),
    ("the child", "子供"),
    ("the neighbour", "隣人"),
    ("the farmer", "農夫"),
]
# Third person, base form and past in English; the stem in Japanese; the objects of the verb.
VERBS = [
    ("eats eat ate", "食べ", "an apple=りんご, fish=魚, a cake=ケーキ, some bread=パン"),
    ("drinks drink drank", "飲み", "water=水, tea=お茶, coffee=コーヒー, milk=牛乳"),
    ("reads read read", "読み", "a book=本, a letter=手紙, a magazine=雑誌, the newspaper=新聞"),
    ("buys buy bought", "買い", "a car=車, a book=本, shoes=靴, flowers=花, a ticket=切符"),
    ("sees see saw", "見", "a film=映画, a bird=鳥, the mountain=山, a picture=絵"),
    ("writes write wrote", "書き", "a letter=手紙, a poem=詩, a book=本"),
    ("washes wash washed", "洗い", "the car=車, a shirt=シャツ, the dishes=皿, a dog=犬"),
    ("makes make made", "作り", "a table=机, a doll=人形, a cake=ケーキ, shoes=靴"),
    ("sells sell sold", "売り", "the house=家, flowers=花, fish=魚, a car=車"),
    ("looks_for look_for looked_for", "探し", "a key=鍵, a cat=猫, the house=家, a ticket=切符"),
]
ADJECTIVES = [
    ("new", "新しい"),
    ("old", "古い"),
    ("big", "大きい"),
    ("small", "小さい"),
    ("red", "赤い"),
]
PLACES = [
    ("in the park", "公園"),
    ("at the station", "駅"),
    ("at school", "学校"),
    ("at home", "家"),
    ("in the library", "図書館"),
    ("in the garden", "庭"),
    ("in the town", "町"),
    ("in Tokyo", "東京"),
    ("in Kyoto", "京都"),
]
COMPANIONS = [("with a friend", "友達と"), ("with my brother", "兄と"), ("alone", "一人で")]
TIMES = dict(
    past=[
        ("yesterday", "昨日"),
        ("this morning", "今朝"),
        ("last week", "先週"),
        ("last year", "去年"),
    ],
    future=[("tomorrow", "明日"), ("next week", "来週"), ("next year", "来年")],
    present=[("every day", "毎日"), ("every week", "毎週")],
)


def english_verb(forms, subject, tense, negated, question):
    """Return the auxiliary and the verb. In a question the subject is between them."""
    third, base, past = (form.replace("_", " ") for form in forms.split())
    singular = subject != "I"
    if tense == "future":
        auxiliary, verb = "will", base
    elif negated or question:
        auxiliary, verb = "did" if tense == "past" else "does" if singular else "do", base
    else:
        auxiliary, verb = "", past if tense == "past" else third if singular else base
    return f"{auxiliary} not" if negated and not question else auxiliary, verb


def clause(rng, question=False):
    """Generate a clause in English and in Japanese, without capital letters and full stops."""
    (subject, ja_subject), (forms, stem, objects) = rng.choice(SUBJECTS), rng.choice(VERBS)
    tense, negated = rng.choice([*TIMES]), not question and rng.random() < 0.2
    thing, ja_thing = rng.choice(objects.split(", ")).split("=")
    if rng.random() < 0.4:
        adjective, ja_adjective = rng.choice(ADJECTIVES)
        article, _, noun = thing.rpartition(" ")
        article = "a" if article == "an" else article
        article = "an" if article == "a" and adjective[0] in "aeiou" else article
        thing, ja_thing = f"{article} {adjective} {noun}".strip(), ja_adjective + ja_thing
    phrases = [rng.choice(each) if rng.random() < 0.5 else None for each in (COMPANIONS, PLACES)]
    companion, place = (phrase or ("", "") for phrase in phrases)
    when, ja_when = rng.choice(TIMES[tense]) if rng.random() < 0.8 else ("", "")
    auxiliary, verb = english_verb(forms, subject, tense, negated, question)
    head = [auxiliary, subject] if question else [subject, auxiliary]
    english = " ".join(filter(None, [*head, verb, thing, companion[0], place[0], when]))
    if tense == "past":
        ending = "ませんでした" if negated else "ました"
    else:
        ending = "ません" if negated else "ます"
    verb = stem + ending
    where = place[1] and f"{place[1]}で"
    japanese = f"{ja_when}{ja_subject}は{where}{companion[1]}{ja_thing}を{verb}"
    return english, japanese


def english_japanese(seed):
    """Yield endless pairs of an English and a Japanese sentence, each English one once."""
    rng, seen = random.Random(seed), set()
    while True:
        draw = rng.random()
        if draw < 0.15:
            english, japanese = clause(rng, question=True)
            english, japanese = f"{english}?", f"{japanese}か。"
        elif draw < 0.35:
            (one, ja_one), (other, ja_other) = clause(rng), clause(rng)
            link, ja_link = rng.choice([(", but", "が、"), (", so", "ので、")])
            english, japanese = f"{one}{link} {other}.", f"{ja_one}{ja_link}{ja_other}。"
        else:
            english, japanese = clause(rng)
            english, japanese = f"{english}.", f"{japanese}。"
        if english not in seen:
            seen.add(english)
            yield english[0].upper() + english[1:], japanese


# Training -------------------------------------------------------------------------


def write_pairs(folder, name, pairs) -> list[Path]:
    """Write both sides of some pairs, and return their paths."""
    paths = [folder / f"{name}.{side}" for side in ("source", "target")]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


def read_pairs(folder, name, count=None) -> list:
    """Read the first pairs of a part of Multi30k, German and English; all if `count` is None."""
    sides = [(folder / f"{name}.{lang}").read_text("utf-8").split("\n") for lang in ("de", "en")]
    return list(itertools.islice(zip(*sides, strict=True), count or len(sides[0]) - 1))


def run_script(script, *flags) -> str:
    """Run a script of the project, and return what it prints."""
    command = [sys.executable, str(ROOT / script), *map(str, flags)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def measure(text, count, more_flags) -> list:
    """Train on `count` pairs with further flags, and return the cells of their row."""
    words = [word.lstrip("-").replace("=", "_") for word in more_flags]
    folder = WORK / "_".join([f"{text}-{count}", *words])
    folder.mkdir(parents=True, exist_ok=True)
    if text == "multi30k":
        multi30k = corpus_folder("multi30k")
        train, test = read_pairs(multi30k, "train", count), read_pairs(multi30k, "val")
        langs = ["--source_lang", "de", "--target_lang", "en"]
    else:
        pairs = english_japanese(seed=0)
        test, train = (list(itertools.islice(pairs, size)) for size in (500, count))
        langs = ["--source_lang", "en", "--target_lang", "ja"]
    flags = ["--recipe", "tiny", *langs, "--preprocessed", folder, "--logdir", folder / "logdir"]
    for part, pairs in (("train", train), ("test", test)):
        for side, path in zip(("source", "target"), write_pairs(folder, part, pairs), strict=True):
            flags += [f"--{side}_{part}", path]
    flags += more_flags
    vocab_size = re.search(r"(\d+) subwords", run_script("prepro.py", *flags))[1]
    start = time.monotonic()
    run_script("train.py", *flags)
    minutes = (time.monotonic() - start) / 60
    hp = json.loads((folder / "logdir" / "hparams.json").read_text("utf-8"))
    checkpoints = (folder / "logdir").glob("model_epoch_*.index")
    steps = max(int(re.search(r"_gs_(\d+)", path.name)[1]) for path in checkpoints)
    scores = []
    for search_flags in ([], ["--beam", "1", "--average_checkpoints", "1"]):
        printed = run_script(
            "eval.py",
            *["--logdir", folder / "logdir", "--results", folder / "results"],
            *search_flags,
        )
        scores.append(re.search(r"sacreBLEU = ([\d.]+)", printed)[1])
    epochs, warmup = hp["num_epochs"], hp["warmup_steps"]
    schedule = [vocab_size, epochs, steps, warmup, f"{minutes:.1f} min"]
    return [text, count, f"`{' '.join(more_flags)}`" if more_flags else "", *schedule, *scores]


def main():
    """Measure each number of pairs, and append its row to the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("text", choices=("multi30k", "english-japanese"))
    parser.add_argument("pairs", type=int, nargs="+")
    args, more_flags = parser.parse_known_args()
    for count in args.pairs:
        row = measure(args.text, count, more_flags)
        line = f"| {' | '.join(map(str, row))} |\n"
        with TABLE.open("a") as file:
            file.write(line if file.tell() else HEADER + line)
        print(line, end="")


if __name__ == "__main__":
    main()
