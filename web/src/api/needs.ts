import { type QueryClient, useInfiniteQuery, useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { api, ask } from './client';
import { history } from './history';
import type { components } from './schema';

export type Need = components['schemas']['Need'];
export type NeedPage = components['schemas']['NeedPage'];
export type Sums = components['schemas']['SumsView'];

const PAGE = 30;
const LONGEST_TIMER_MS = 2 ** 31 - 1;

async function readNeeds(project: string | undefined, cause: string | undefined, offset: number) {
  const query = { project, cause, offset, limit: PAGE };
  const page = await ask(api.GET('/api/v1/needs', { params: { query } }));
  history.joins(page.last_event);
  return page;
}

/** The needs, page by page; for one cause, each need by itself. */
export function useNeedPages(project?: string, cause?: string) {
  const queries = useQueryClient();
  const list = useInfiniteQuery({
    queryKey: ['needs', project ?? null, cause ?? null],
    queryFn: ({ pageParam }) => readNeeds(project, cause, pageParam),
    initialPageParam: 0,
    getNextPageParam: (last) => last.next_offset,
  });
  const first = list.data?.pages[0];
  const due = first?.next_due;
  useEffect(() => {
    if (!due) return;
    const left = Math.min(Math.max(0, Date.parse(due) - Date.now() + 50), LONGEST_TIMER_MS);
    const timer = setTimeout(() => refreshNeeds(queries), left);
    return () => clearTimeout(timer);
  }, [due, queries]);
  return {
    needs: list.data?.pages.flatMap((page) => page.needs) ?? [],
    /** The number of rows, and of the tasks and runs in them. */
    rows: first?.rows ?? 0,
    total: first?.total ?? 0,
    isPending: list.isPending,
    more: list.hasNextPage && !list.isFetchingNextPage ? () => void list.fetchNextPage() : null,
  };
}

/** The ids of all work that needs the person for one cause. */
export async function idsOfCause(project: string | undefined, cause: string): Promise<string[]> {
  const ids: string[] = [];
  for (let offset: number | null = 0; offset !== null; ) {
    const page: NeedPage = await readNeeds(project, cause, offset);
    ids.push(...page.needs.map(({ work }) => work.id));
    offset = page.next_offset;
  }
  return ids;
}

/** The totals of work that started or ended since a moment. */
export const useSums = (since: string, project?: string) =>
  useQuery({
    queryKey: ['sums', since, project ?? null],
    queryFn: () => ask(api.GET('/api/v1/sums', { params: { query: { since, project } } })),
  });

export function refreshNeeds(queries: QueryClient): void {
  queries.invalidateQueries({ queryKey: ['needs'] });
  queries.invalidateQueries({ queryKey: ['sums'] });
}
