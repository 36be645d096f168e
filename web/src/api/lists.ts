import type { InfiniteData } from '@tanstack/react-query';
import { api, ask, isRun, type Work } from './client';
import { history } from './history';
import type { paths } from './schema';

type Query = NonNullable<paths['/api/v1/work']['get']['parameters']['query']>;

/** Which tasks and runs a list holds. */
export interface Filter {
  status?: Query['status'];
  nested?: boolean;
  /** Right inside this run. */
  run_id?: string;
  project?: string;
  flagged?: boolean;
  /** Include archived work. */
  archived?: boolean;
  limit?: number;
  /** Words in titles and ids. */
  q?: string;
  state?: Query['state'];
  agent?: string;
  /** A task, or the name of a pattern. */
  kind?: string;
  tag?: string;
  /** The name of a repository. */
  repository?: string;
  since?: string;
  pr?: Query['pr'];
}

const ANSWERED = ['q', 'state', 'agent', 'kind', 'tag', 'repository', 'since', 'pr'] as const;

/** Tells whether only the daemon can apply a filter. */
export const isAnswered = (filter: Filter): boolean => ANSWERED.some((name) => filter[name] !== undefined);

export interface Page {
  work: Work[];
  /** On all pages, when this one was read. */
  total: number;
  next_cursor: string | null;
  last_event: number;
}
export type Pages = InfiniteData<Page, string | null>;

type Statuses = NonNullable<Query['status']>;
export const BEGUN: Statuses = ['running', 'waiting', 'paused'];
export const NEXT: Statuses = ['queued', 'blocked'];
export const ENDED: Statuses = ['completed', 'failed', 'cancelled'];

/** Rows of work with their long texts cut, as of an event from which on changes are told. */
export async function readPage(filter: Filter, cursor: string | null): Promise<Page> {
  const query = { ...filter, cursor, light: true };
  const page = await ask(api.GET('/api/v1/work', { params: { query } }));
  history.joins(page.last_event);
  return page;
}

function belongs(filter: Filter, work: Work): boolean {
  const inside = isRun(work) ? work.parent_id : work.run_id;
  return (
    (filter.archived || !work.archived_at) &&
    (!filter.status || filter.status.includes(work.status)) &&
    (filter.run_id ? inside === filter.run_id : filter.nested || !inside) &&
    (!filter.flagged || !!work.flagged_at) &&
    (!filter.project || work.project === filter.project)
  );
}

/** Pages with a piece of work as it is now: in its place, put in front, or gone. */
export function replaced(pages: Pages, filter: Filter, work: Work): Pages {
  const held = pages.pages.some((page) => page.work.some((item) => item.id === work.id));
  const wanted = belongs(filter, work);
  if (!held && (!wanted || isAnswered(filter))) return pages;
  const changed = pages.pages.map((page, number) => {
    const at = page.work.findIndex((item) => item.id === work.id);
    if (at >= 0) return { ...page, work: page.work.toSpliced(at, 1, ...(wanted ? [work] : [])) };
    return !held && number === 0 ? { ...page, work: byAge([work, ...page.work]) } : page;
  });
  return { ...pages, pages: changed };
}

/** The newest first: ids sort by the time they were made, behind their prefix. */
function byAge(work: Work[]): Work[] {
  const made = (item: Work) => item.id.slice(item.id.indexOf('_'));
  return work.sort((a, b) => (made(a) < made(b) ? 1 : -1));
}
