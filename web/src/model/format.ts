const WORDS = 'No One Two Three Four Five Six Seven Eight Nine Ten Eleven Twelve'.split(' ');

/** A number as the first word of a sentence. */
export const inWords = (count: number): string => WORDS[count] ?? String(count);

/** A number with separators: 5,241. */
export const grouped = (count: number): string => count.toLocaleString('en');

/** The name of a repository or directory. */
export const nameOfPath = (path: string): string => path.replace(/\/+$/, '').split('/').at(-1) || path;

export const counted = (count: number, noun: string, nouns = `${noun}s`): string =>
  `${count.toLocaleString('en')} ${count === 1 ? noun : nouns}`;

// Made once: to make one costs more than all else that is done with it.
const DOLLARS = new Intl.NumberFormat('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const MINUTES = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const SECONDS = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' });
const DATE = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric' });

export function money(usd: number | null | undefined, unknown = 'unknown'): string {
  if (usd === null || usd === undefined) return unknown;
  if (usd > 0 && usd < 0.01) return '< $0.01';
  return `$${DOLLARS.format(usd)}`;
}

/** Seconds as a clock shows them: 4:05, 1:58:20; what took less than a second, 0.4 s. */
export function clock(seconds: number): string {
  if (seconds > 0 && seconds < 1) return `${Math.max(0.1, Math.floor(seconds * 10) / 10)} s`;
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  const two = (value: number) => String(value).padStart(2, '0');
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** Seconds in the unit that says enough: 6 min, 2 h, 3 d. */
export function span(seconds: number): string {
  if (seconds < 10) return `${Math.max(0, Math.round(seconds * 10) / 10)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const sinceMs = (at: string): number => Date.parse(at);

export const secondsBetween = (from: string, to: string | number): number =>
  ((typeof to === 'number' ? to : Date.parse(to)) - Date.parse(from)) / 1000;

/** The local time of day, with the date when it was not today. */
export function moment(at: string, seconds = false): string {
  const when = new Date(at);
  const time = (seconds ? SECONDS : MINUTES).format(when);
  const now = new Date();
  if (when.toDateString() === now.toDateString()) return time;
  return `${(when.getFullYear() === now.getFullYear() ? DAY : DATE).format(when)} ${time}`;
}

/** A value with at most one decimal, and with none from 100 on. */
const rounded = (value: number): number => (value >= 100 ? Math.round(value) : Math.round(value * 10) / 10);

export function bytes(count: number): string {
  if (count < 1000) return `${count} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let value = count / 1000;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${rounded(value)} ${units[unit]}`;
}

/** A large count, shortened: 1.7 M, 27 k. */
export function short(count: number): string {
  if (count < 1000) return String(count);
  if (count < 1e6) return `${rounded(count / 1e3)} k`;
  if (count < 1e9) return `${rounded(count / 1e6)} M`;
  return `${rounded(count / 1e9)} G`;
}

interface Results {
  done: number;
  verified: number;
  failed: number;
  cancelled: number;
  merged: number;
}

/** The results of a time in the words of the report, with what is done of them told first. */
export function resultsLine({ done, verified, failed, cancelled, merged }: Results, when = ''): string {
  const parts = [
    `${grouped(done)} done${when} (${grouped(verified)} verified, ${grouped(done - verified)} not)`,
  ];
  if (failed > 0) parts.push(`${grouped(failed)} failed`);
  if (cancelled > 0) parts.push(`${grouped(cancelled)} cancelled`);
  if (merged > 0) parts.push(`${grouped(merged)} merged`);
  return parts.join(', ');
}

export const percent = (part: number, whole: number): string =>
  whole ? `${Math.round((100 * part) / whole)} %` : '0 %';

/** The end of an id that tells it from others. */
export const shortId = (id: string): string => {
  const [prefix, rest = ''] = id.split('_');
  return `${prefix}_${rest.slice(-6)}`;
};

export const shortCommit = (commit: string): string => commit.slice(0, 7);

/** A word or a sentence with a capital letter. */
export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** Exactly one full stop at the end. */
export const sentence = (text: string): string => (/[.!?…]$/.test(text) ? text : `${text}.`);

/** Lines as sentences behind one another. */
export const inline = (text: string): string =>
  text
    .split(/\s*\n\s*/)
    .filter(Boolean)
    .map((line, at, all) => (at === all.length - 1 || /[,:;]$/.test(line) ? line : sentence(line)))
    .join(' ');

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]?|\][^\u0007\u001b]*\u0007?|[ -/]*[0-~])|\u0007/g;

/** The last line that can be read on a terminal's screen. */
export const lastOnScreen = (text: string): string =>
  text
    .replace(ESCAPES, '')
    .split(/[\r\n]+/)
    .findLast((line) => line.trim()) ?? '';

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text from elsewhere with what cannot be seen made visible. */
export const visible = (text: string): string =>
  text.replace(CONTROL, (found) => {
    const code = found.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨${code.toString(16).toUpperCase()}⟩`;
  });
