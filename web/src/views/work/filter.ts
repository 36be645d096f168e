import { isRun, type Work } from '../../api/client';
import { stateOf, whoOf } from '../../model/work';

export interface Token {
  text: string;
  name: string;
  wanted: string;
}

const TOKEN = /(\w+):(\S+)/g;

const FIELDS: Record<string, (work: Work) => string[]> = {
  state: (work) => [
    work.status,
    stateOf(work),
    work.verified ? 'verified' : '',
    work.merged_at ? 'merged' : '',
  ],
  pr: (work) => [work.delivery?.number ? 'any' : '', work.delivery?.state ?? ''],
  agent: (work) => [whoOf(work)],
  kind: (work) => [isRun(work) ? work.pattern : 'task'],
  project: (work) => [work.project ?? ''],
  tag: (work) => (isRun(work) ? [] : work.tags),
};

/** The parts of a filter that name a field. */
export const tokensOf = (filter: string): Token[] =>
  [...filter.matchAll(TOKEN)]
    .map(([text, name = '', wanted = '']) => ({ text, name, wanted }))
    .filter(({ name }) => name in FIELDS);

/** What a filter holds besides. */
export const wordsOf = (filter: string): string =>
  tokensOf(filter)
    .reduce((text, token) => text.replace(token.text, ''), filter)
    .replace(/\s+/g, ' ')
    .trim();

/** Whether a piece of work has every word of a filter in its title or id, and every field that it names. */
export function fits(work: Work, filter: string): boolean {
  const tokens = tokensOf(filter);
  const rest = wordsOf(filter).toLowerCase();
  const title = `${work.title} ${work.id}`.toLowerCase();
  return (
    rest.split(/\s+/).every((word) => title.includes(word)) &&
    tokens.every(({ name, wanted }) => FIELDS[name]?.(work).includes(wanted))
  );
}
