// Translates sentences with the model of this folder, by onnxruntime-web. Needs no server program.
//
//     import * as ort from "./ort/ort.wasm.min.mjs";
//     const translator = await Translator.load(document.baseURI, ort);
//     const {text, score} = await translator.translate("Ein Hund läuft.");

const LONGEST = 300;  // characters of a sentence; a longer one is split, if possible at a space
const PARTS = new RegExp(`.{1,${LONGEST}}(?:\\s+|$)|.{1,${LONGEST}}`, "gsu");
// Chinese and Japanese, which have no space after a sentence.
const WIDE_END = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\u3001-\u303f\uff01-\uff65][\p{Pi}\p{Pf}\p{Pe}…—]*$/u;

// Returns the sentences of a text, with the white space after each: [{sentence, gap}].
export function splitText(text, language) {
  const segments = [...new Intl.Segmenter(language, {granularity: "sentence"}).segment(text.trim())];
  return segments.flatMap(({segment}) => segment.match(PARTS)).map((part) => {
    const sentence = part.trimEnd();
    return {sentence, gap: part.slice(sentence.length)};
  });
}

// Returns what separates the translation of a sentence from the next one: see `joint` of
// translation/paragraphs.py.
export function joint(sentence, gap, translation) {
  if (/[^ \u3000]/u.test(gap)) return gap;
  if (WIDE_END.test(translation)) return "";
  const isInWord = !gap && /[\p{L}\p{M}\p{N}]$/u.test(sentence);
  return gap.includes(" ") || !translation || isInWord ? gap : " ";
}

export class Translator {
  static async load(folder, ort) {
    const settings = await (await fetch(new URL("model.json", folder))).json();
    const [encoder, step] = await Promise.all(["encoder", "step"].map(
      (name) => ort.InferenceSession.create(new URL(`${name}.onnx`, folder).href)));
    return new Translator(settings, encoder, step, ort);
  }

  constructor(settings, encoder, step, ort) {
    Object.assign(this, settings, {encoder, step, ort});
    const patterns = Object.entries(settings.normalize);
    this.patterns = Object.fromEntries(patterns.map(([k, v]) => [k, new RegExp(v, "gmu")]));
    this.tokenizers = [new Tokenizer(settings.source), new Tokenizer(settings.target)];
  }

  // Returns {text, score}: the translation, and its log-probability / length penalty.
  async translate(sentence, beam = this.search.beam) {
    const [source, target] = this.tokenizers;
    const tokens = source.encode(this.normalized(sentence));
    if (!tokens.length) return {text: "", score: 0};
    const ids = [...tokens.slice(0, this.search.max_input_tokens - 1), this.search.end];
    const {tokens: found, score} = await this.beamSearch(ids, beam);
    return {text: this.normalized(target.decode(found).replace(/[\r\n]/g, " ")), score};
  }

  // Returns text in which all that looks equal is equal.
  normalized(text) {
    const {invisible, joiners, unjoined, loose} = this.patterns;
    text = text.replace(invisible, "");
    text = text.replace(unjoined, (part) => part.replace(joiners, "")).replace(loose, "$1");
    return text.normalize("NFC");
  }

  // Returns the best sentence {tokens, score} for source ids, among `beam` at a time.
  async beamSearch(ids, beam) {
    const {Tensor} = this.ort;
    const {start, end, alpha, pad_to, max_output} = this.search;
    const int32 = (values, shape = [values.length]) =>
      new Tensor("int32", Int32Array.from(values), shape);
    // Greedy search stops at the first end.
    const exponent = beam > 1 ? alpha : 0;
    const penalty = (length) => ((5 + length) / 6) ** exponent;
    const limit = Math.floor(ids.length * max_output.factor / 10) + max_output.extra;
    const count = int32([Math.min(2 * beam, this.target.tokens.length)]);
    const x = [...ids, ...Array(Math.max(0, pad_to - ids.length)).fill(0)];
    const tensors = await this.encoder.run({x: int32(x, [1, x.length])});
    let live = [{tokens: [], score: 0, parent: 0}];  // not ended, the best first
    let finished = [];  // ended, the best first
    for (let length = 1; length <= limit; length++) {
      await globalThis.scheduler?.yield?.();  // so that a page is alive
      const outputs = await this.step.run({
        ...tensors,
        ids: int32(live.map(({tokens}) => tokens.at(-1) ?? start)),
        parents: int32(live.map(({parent}) => parent)),
        count,
      });
      for (const name of this.step.outputNames.filter((name) => name.startsWith("next_"))) {
        tensors[name.slice(5)] = outputs[name];
      }
      const [scores, tokens] = [outputs.scores.data, outputs.tokens.data];
      const size = count.data[0];
      const candidates = Array.from(scores, (score, i) => {
        const parent = Math.floor(i / size);
        return {parent, token: tokens[i], score: Math.fround(live[parent].score + score)};
      }).sort((a, b) => b.score - a.score).slice(0, 2 * beam);
      const continued = [];
      candidates.forEach(({parent, token, score}, rank) => {
        const next = {tokens: [...live[parent].tokens, token], score, parent};
        if (token !== end && length < limit) {
          continued.push(next);
        } else if (rank < beam) {  // a worse one ends too early to be good
          finished.push({tokens: next.tokens, score: Math.fround(score / penalty(length))});
        }
      });
      finished = finished.sort((a, b) => b.score - a.score).slice(0, beam);
      live = continued.slice(0, beam);
      if (!live.length) break;
      // Log-probabilities only fall, and no penalty is larger than that of the longest sentence.
      if (finished.length && live[0].score / penalty(limit) <= finished[0].score) break;
    }
    const [{tokens, score}] = finished;
    return {tokens: tokens.at(-1) === end ? tokens.slice(0, -1) : tokens, score};
  }
}

const SPACE = "▁";  // stands for a space in a subword

class Tokenizer {
  constructor(settings) {
    Object.assign(this, settings);
    const texts = settings.tokens.map((token, id) => [token, id]).slice(settings.specials);
    const unread = new Set([...(settings.bytes ?? []), ...(settings.unused ?? [])]);  // in no text
    this.ids = new Map(texts.filter(([, id]) => !unread.has(id)));
    const symbols = (settings.symbols ?? []).map((id) => settings.tokens[id]);
    symbols.sort((a, b) => b.length - a.length);
    const escaped = symbols.map((symbol) => symbol.replace(/[\\^$.*+?()[\]{}|\/-]/g, "\\$&"));
    this.symbolPattern = escaped.length ? new RegExp(`(${escaped.join("|")})`, "u") : /(?!)/;
    this.longest = 0;
    for (const token of this.ids.keys()) {
      this.longest = Math.max(this.longest, Array.from(token).length);
    }
  }

  // Returns the ids of normalized text.
  encode(text) {
    if (this.kind === "words") {
      const words = text.replace(/[^\s\p{Script=Latin}']/gu, "").split(/\s+/).filter(Boolean);
      return words.map((word) => this.ids.get(word) ?? this.unknown);
    }
    const isSymbol = (i) => i % 2;  // split keeps the symbols at odd places
    const replace = (part) => Array.from(part, (char) => this.replacement(char)).join("");
    text = text.split(this.symbolPattern).map((p, i) => isSymbol(i) ? p : replace(p)).join("");
    if (this.composes) text = text.normalize("NFC").replaceAll("\0", "");
    const words = text.split(" ").filter(Boolean).map((word) => SPACE + word);
    const parts = words.join("").replace(/▁+$/u, "").split(this.symbolPattern);
    const split = this.algorithm === "bpe"
      ? (part) => part.split(/(?=▁)/u).flatMap((word) => this.splitByMerges(word))
      : (part) => this.splitByScores(part);
    return this.joinUnknown(parts.flatMap((part, i) => isSymbol(i) ? [this.ids.get(part)]
      : split(part).flatMap((token) => this.idsOf(token))));
  }

  // Returns what replaces a character. Several characters are not composed with a mark after them.
  replacement(char) {
    const text = this.replaced[char] ?? char;
    return this.composes && Array.from(text).length > 1 ? text + "\0" : text;
  }

  // Unigrams (Kudo 2018): the split whose tokens have the highest sum of scores.
  splitByScores(text) {
    const chars = Array.from(text);
    const best = [{score: 0}];  // of the text before each character
    const propose = (score, start, end) => {
      if (!best[end] || score > best[end].score) best[end] = {score: Math.fround(score), start};
    };
    for (let start = 0; start < chars.length; start++) {
      let token = "", known = false;
      for (let end = start + 1; end <= Math.min(chars.length, start + this.longest); end++) {
        token += chars[end - 1];
        if (!this.ids.has(token)) continue;
        propose(best[start].score + this.scores[this.ids.get(token)], start, end);
        known ||= end === start + 1;
      }
      if (!known) propose(Math.fround(best[start].score + this.unknown_score), start, start + 1);
    }
    const tokens = [];
    for (let end = chars.length; end > 0; end = best[end].start) {
      tokens.unshift(chars.slice(best[end].start, end).join(""));
    }
    return tokens;
  }

  // Byte-pair encoding: joins the pair with the highest score until none is a token.
  splitByMerges(word) {
    const parts = Array.from(word);
    for (;;) {
      let best = -1, bestScore = -Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        const score = this.scores[this.ids.get(parts[i] + parts[i + 1])] ?? -Infinity;
        if (score > bestScore) [best, bestScore] = [i, score];
      }
      if (best < 0) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
    return parts;
  }

  idsOf(token) {
    if (this.ids.has(token)) return [this.ids.get(token)];
    if (!this.bytes.length) return [this.unknown];
    return Array.from(new TextEncoder().encode(token), (byte) => this.bytes[byte]);
  }

  // Unknown characters next to each other are one token.
  joinUnknown(ids) {
    return ids.filter((id, i) => id !== this.unknown || ids[i - 1] !== this.unknown);
  }

  decode(ids) {
    if (this.kind === "words") return ids.map((id) => this.tokens[id]).join(" ");
    let text = "", bytes = [];
    const flush = () => {
      text += new TextDecoder().decode(Uint8Array.from(bytes));
      bytes = [];
    };
    for (const id of ids) {
      const byte = this.bytes.indexOf(id);
      if (byte >= 0) {
        bytes.push(byte);
        continue;
      }
      flush();
      if (id === this.unknown) {
        text += this.unknown_text;
      } else if (id >= this.specials) {
        const word = this.tokens[id].replaceAll(SPACE, " ");
        text += text ? word : word.trimStart();
      }
    }
    flush();
    return text;
  }
}
