"""The forms in which people write sentences: capitals, lower case, punctuation, typing errors."""

import random

import pytest
import regex

from choices import FORMS
from forms import lower, title, upper, with_final_mark, with_typos, without_final_mark

SENTENCES = {
    "de": "Die Straße führt zu Łukas' Haus.",
    "en": "The dog doesn't see I.B.M.'s sign!",
    "tr": "İki ılık ışık için İzmir'e gitti.",
    "el": "Ο Όσιος είδε τον ουρανό ψηλός;",
    "ru": "Ёлка стоит у окна?",
    "hy": "Շունը տեսնում է կատվին։",
    "ka": "ძაღლი ხედავს კატას.",
    "nl": "Het ijs ligt in Ijmuiden.",
    "ja": "犬が猫を見る。",
    "zh": "狗看见猫！",
    "ar": "الكلب يرى القط؟",
    "hi": "कुत्ता बिल्ली को देखता है।",
    "th": "สุนัขเห็นแมว",
    "ko": "개가 고양이를 본다.",
}


@pytest.mark.parametrize("lang", SENTENCES)
def test_cases_are_those_of_the_script(lang):
    sentence = SENTENCES[lang]
    assert not regex.search(r"\p{Ll}", upper(sentence, lang))
    assert not regex.search(r"\p{Lu}", lower(sentence, lang))
    assert lower(upper(sentence, lang), lang) == lower(upper(lower(sentence, lang), lang), lang)
    words = regex.findall(r"(?<![\p{L}\p{M}'])\p{L}", title(sentence, lang))
    assert all(letter == letter.title() or lang == "tr" for letter in words)
    if not regex.search(r"[\p{Lu}\p{Ll}]", sentence):  # a script without case
        assert upper(sentence, lang) == lower(sentence, lang) == title(sentence, lang) == sentence


@pytest.mark.parametrize(
    "change, lang, sentence, expected",
    [
        (upper, "de", "weiß", "WEISS"),
        (upper, "tr", "iı", "İI"),
        (upper, "az-Latn", "i", "İ"),
        (upper, "en", "iı", "II"),
        (upper, "el", "καΐκι Άννα πού", "ΚΑΪΚΙ ΑΝΝΑ ΠΟΥ"),
        (upper, "fr", "été", "ÉTÉ"),
        (lower, "tr", "İI", "iı"),
        (lower, "en", "İI", "ii"),
        (lower, "el", "ΣΟΦΟΣ ΟΔΟΣ.", "σοφος οδος."),
        (title, "tr", "iki ışık", "İki Işık"),
        (title, "nl", "ijs en bijl", "IJs En Bijl"),
        (title, "en", "don't o'clock ǆip", "Don't O'clock ǅip"),
        (title, "de", "der NATO-gipfel", "Der NATO-Gipfel"),
    ],
)
def test_rules_of_languages(change, lang, sentence, expected):
    assert change(sentence, lang) == expected


@pytest.mark.parametrize("change", [upper, lower, title])
def test_addresses_and_placeholders_keep_their_case(change):
    kept = "https://Example.org/aB {Name} %s %(Count)d <b> Me.You@example.com &amp; @User_1 $Var"
    assert change(kept, "de") == kept


@pytest.mark.parametrize("lang", SENTENCES)
def test_the_final_mark_is_removed_and_added_again(lang):
    without = without_final_mark(SENTENCES[lang])
    assert without == regex.sub(r"[.!?;؟。！।։]$", "", SENTENCES[lang]) or lang == "el"
    assert without_final_mark(without) == without
    end = with_final_mark(without)
    assert end == without if lang == "th" else end.startswith(without) and end != without
    assert with_final_mark(end) == end


def test_final_marks_within_quotes_and_without_text():
    assert without_final_mark("Er sagt: „Nein!“") == "Er sagt: „Nein“"
    assert without_final_mark("Wirklich?! ") == "Wirklich "
    assert without_final_mark("v1.2 ist da") == "v1.2 ist da"
    assert without_final_mark("...") == "" and with_final_mark("") == ""


def test_a_pair_changes_its_punctuation_on_both_sides_or_only_the_source():
    change_pair = FORMS["punctuation"].load()().change_pair
    langs, rng = ("de", "ja"), random.Random(0)
    assert change_pair(["Ein Hund.", "犬。"], langs, rng) == ["Ein Hund", "犬"]
    assert change_pair(["Ein Hund", "犬"], langs, rng) == ["Ein Hund.", "犬。"]
    assert change_pair(["Ein Hund", "犬。"], langs, rng) == ["Ein Hund", "犬。"]
    change_pair = FORMS["missing_mark"].load()().change_pair
    assert change_pair(["Ein Hund.", "犬。"], langs, rng) == ["Ein Hund", "犬。"]
    assert change_pair(["Ein Hund", "犬。"], langs, rng) == ["Ein Hund", "犬。"]


def test_typing_errors_are_few_seeded_and_only_in_the_source():
    sentence = " ".join(["Straßenbahn fährt ab 12.5 www.example.com"] * 200)
    wrong = with_typos(sentence, random.Random(1))
    assert wrong == with_typos(sentence, random.Random(1)) != with_typos(sentence, random.Random(2))
    changed = [a != b for a, b in zip(sentence.split(), wrong.split(), strict=True)]
    assert 0.02 < sum(changed) / len(changed) < 0.1
    assert not any(
        same != word
        for same, word in zip(sentence.split(), wrong.split(), strict=True)
        if not same[0].isalpha() or "." in same
    )
    for text in (SENTENCES["ja"] * 50, SENTENCES["ko"] * 50):
        assert with_typos(text, random.Random(1)) == text
    pair = FORMS["typos"].load()().change_pair([sentence, sentence], ("de", "en"), random.Random(1))
    assert pair == [wrong, sentence]


@pytest.mark.parametrize("form", FORMS)
def test_forms_take_linear_time(form):
    """A text of some 100,000 characters takes seconds at most, whatever it consists of."""
    change_pair = FORMS[form].load()().change_pair
    for part in (
        "a",
        " ",
        ".",
        "<b ",
        "a.",
        "{",
        "%(",
        "@a",
        "&#",
        "http://",
        "I",
        "😀",
        "a@b.",
        "[[",
    ):
        text = part * (60_000 // len(part))
        change_pair([text, text], ("tr", "el"), random.Random(0))
