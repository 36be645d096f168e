import type { Filter } from '../../api/lists';

export interface Token {
  text: string;
  name: string;
  wanted: string;
}

const TOKEN = /(\w+):(\S+)/g;
type State = NonNullable<Filter['state']>[number];

const STATES: State[] = [
  'queued', 'blocked', 'running', 'waiting', 'paused', 'completed', 'failed', 'cancelled',
  'needs_you', 'verified', 'unverified', 'merged', 'lost', 'rate_limited',
]; // biome-ignore format: a list
/** Aliases of states. */
const CALLED: Record<string, State> = {
  you: 'needs_you', needs: 'needs_you', ok: 'verified', said: 'unverified', run: 'running', bad: 'failed',
  limit: 'rate_limited', unproven: 'unverified',
}; // biome-ignore format: a list
const PULLS = ['any', 'draft', 'open', 'merged', 'closed'] as const;
const FIELDS = new Set(['state', 'pr', 'agent', 'kind', 'project', 'repo', 'tag', 'since']);

/** The parts of a filter that name a field. */
export const tokensOf = (filter: string): Token[] =>
  [...filter.matchAll(TOKEN)]
    .map(([text, name = '', wanted = '']) => ({ text, name, wanted }))
    .filter(({ name }) => FIELDS.has(name));

/** The other fields of a filter. */
export const wordsOf = (filter: string): string =>
  tokensOf(filter)
    .reduce((text, token) => text.replace(token.text, ''), filter)
    .replace(/\s+/g, ' ')
    .trim();

const UNITS_MS: Record<string, number> = { m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const MINUTE_MS = 60_000;

/** The moment that since: names: a date, a time, today, or a duration before now such as 12h. */
function momentOf(text: string): string | null {
  if (text === 'today') return new Date(new Date().setHours(0, 0, 0, 0)).toISOString();
  const [, count, unit = ''] = /^(\d+)([mhdw])$/.exec(text) ?? [];
  // By the minute, so that the same filter is the same list for a while.
  const now = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;
  if (count) return new Date(now - Number(count) * (UNITS_MS[unit] ?? 0)).toISOString();
  return Number.isNaN(Date.parse(text)) ? null : new Date(text).toISOString();
}

/** Tells whether a word is the beginning of a known one, so that the person is still typing it. */
const isBegun = (known: readonly string[], word: string): boolean =>
  known.some((one) => one.startsWith(word));

export interface Asked {
  filter: Filter;
  /** The error for a token that the daemon does not know. */
  problem: string | null;
}

/** The query for a filter text. */
export function askedBy(typed: string): Asked {
  const filter: Filter = {};
  const words = wordsOf(typed);
  if (words) filter.q = words;
  for (const { name, wanted, text } of tokensOf(typed)) {
    if (name === 'state') {
      for (const word of wanted.split(',')) {
        const state = CALLED[word] ?? STATES.find((one) => one === word.replace('-', '_'));
        if (!state && isBegun(STATES, word)) continue;
        if (!state) return { filter, problem: `state:${word} is not a state. States: ${STATES.join(', ')}.` };
        filter.state = [...(filter.state ?? []), state];
      }
    } else if (name === 'pr') {
      const pull = PULLS.find((one) => one === wanted);
      if (!pull && isBegun(PULLS, wanted)) continue;
      if (!pull) return { filter, problem: `${text} is not a state of a pull request: ${PULLS.join(', ')}.` };
      filter.pr = pull;
    } else if (name === 'since') {
      const moment = momentOf(wanted);
      if (!moment)
        return { filter, problem: `${text} is not a time. Write since:12h, since:7d or since:2026-11-01.` };
      filter.since = moment;
    } else if (name === 'repo') {
      filter.repository = wanted;
    } else {
      filter[name as 'agent' | 'kind' | 'project' | 'tag'] = wanted;
    }
  }
  return { filter, problem: null };
}
