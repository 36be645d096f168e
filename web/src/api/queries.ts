import {
  keepPreviousData,
  useInfiniteQuery,
  useMutation,
  useQueries,
  useQuery,
  useQueryClient,
} from '@tanstack/react-query';
import { useCallback } from 'react';
import {
  type ApiError,
  api,
  ask,
  type PersonMessage,
  type Run,
  type Step,
  type Task,
  type Work,
} from './client';
import { BEGUN, ENDED, type Filter, NEXT, type Pages, readPage } from './lists';
import { put } from './live';
import { refreshNeeds } from './needs';
import type { components } from './schema';

/** One list of work, page by page, kept as it is now. */
export function useWork(filter: Filter) {
  return useInfiniteQuery({
    queryKey: ['work', 'list', filter],
    queryFn: ({ pageParam }) => readPage(filter, pageParam),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next_cursor,
    // While another filter is answered, what was found before stays.
    placeholderData: filter.q === undefined ? undefined : keepPreviousData,
    // Comparing thousands of rows in depth takes longer than a frame has.
    structuralSharing: false,
  });
}

/** The direct parts of some runs, by run id. */
export function useInside(ids: string[]): Map<string, Work[]> {
  // The oldest first: in the order in which the run began them.
  const combine = useCallback(
    (found: { data?: Pages }[]) =>
      new Map(ids.map((id, at) => [id, found[at]?.data?.pages.flatMap(({ work }) => work).reverse() ?? []])),
    [ids],
  );
  return useQueries({
    queries: ids.map((run_id) => {
      const filter: Filter = { run_id, nested: true, limit: 200 };
      return {
        queryKey: ['work', 'list', filter],
        queryFn: async (): Promise<Pages> => ({ pages: [await readPage(filter, null)], pageParams: [null] }),
      };
    }),
    combine,
  });
}

const rows = (list: ReturnType<typeof useWork>): Work[] =>
  list.data?.pages.flatMap((page) => page.work) ?? [];

/** Work that has not ended, parts of runs too: what has begun, and the newest of what is to begin. */
export function useActive(project?: string) {
  const begun = useWork({ status: BEGUN, nested: true, project, limit: 500 });
  const next = useWork({ status: NEXT, nested: true, project, limit: 200 });
  const work = [...rows(begun), ...rows(next)];
  const total = useTotal({ status: [...BEGUN, ...NEXT], nested: true, project });
  return {
    work,
    isPending: begun.isPending || next.isPending,
    /** The amount of work that is not listed. */
    unlisted: Math.max(0, (total ?? 0) - work.length),
  };
}

/** The number of matches on all pages; a live list does not know it. */
export const useTotal = (filter: Filter): number | undefined =>
  useQuery({
    queryKey: ['sums', 'work', filter],
    queryFn: async () => (await readPage({ ...filter, limit: 1 }, null)).total,
  }).data;

/** The amount of open work, without parts of runs. */
export const useOpenCount = (project?: string): number =>
  useTotal({ status: [...BEGUN, ...NEXT], project }) ?? 0;

/** The work that ended last, as many as are shown; totals come from the daemon. */
export function useEnded(project?: string) {
  const list = useWork({ status: ENDED, project, limit: 30 });
  return { ...list, work: rows(list) };
}

export function useOne(id: string, wanted = true) {
  return useQuery({
    queryKey: ['work', 'one', id],
    queryFn: () => ask(api.GET('/api/v1/work/{work_id}', { params: { path: { work_id: id } } })),
    enabled: wanted,
    retry: false,
  });
}

const stepsOf = (id: string) => ({
  queryKey: ['steps', id],
  queryFn: () => ask(api.GET('/api/v1/runs/{run_id}/steps', { params: { path: { run_id: id } } })),
});

export const useSteps = (id: string) => useQuery(stepsOf(id));

/** The steps of some runs, by their ids. */
export function useStepsOf(ids: string[]): Map<string, Step[]> {
  const combine = useCallback(
    (found: { data?: Step[] }[]) => new Map(ids.map((id, at) => [id, found[at]?.data ?? []])),
    [ids],
  );
  return useQueries({ queries: ids.map(stepsOf), combine });
}

export const useDaemon = () =>
  useQuery({ queryKey: ['daemon'], queryFn: () => ask(api.GET('/api/v1/daemon')) });

/** Ask an agent for one word, which costs a little; an answer lifts the pause of its account. */
export function useAgentTest(name: string) {
  const queries = useQueryClient();
  return useMutation<components['schemas']['CheckView'], ApiError>({
    mutationFn: () =>
      ask(
        api.POST('/api/v1/agents/{name}/check', {
          params: { path: { name } },
          body: { live: true },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: ['agents'] }),
  });
}

/** The agents; what their providers tell of limits is in no history, and is asked for now and then. */
export const useAgents = (directory?: string, everyMs?: number) =>
  useQuery({
    refetchInterval: everyMs,
    queryKey: ['agents', directory ?? null],
    queryFn: () => ask(api.GET('/api/v1/agents', { params: { query: { directory } } })),
  });

export const useSchedules = () =>
  useQuery({
    queryKey: ['schedules'],
    queryFn: () => ask(api.GET('/api/v1/schedules', { params: { query: { limit: 500 } } })),
  });

export const useSchedule = (id: string) =>
  useQuery({
    queryKey: ['schedules', id],
    queryFn: () => ask(api.GET('/api/v1/schedules/{schedule_id}', { params: { path: { schedule_id: id } } })),
  });

export const useFirings = (id: string) =>
  useQuery({
    queryKey: ['schedules', id, 'firings'],
    queryFn: () =>
      ask(
        api.GET('/api/v1/schedules/{schedule_id}/firings', {
          params: { path: { schedule_id: id }, query: { limit: 100 } },
        }),
      ),
  });

export type Hit = components['schemas']['Hit'];

export const useSearched = (query: string, wanted: boolean, limit = 12, project?: string) =>
  useQuery({
    queryKey: ['search', query, limit, project ?? null],
    queryFn: () => ask(api.GET('/api/v1/search', { params: { query: { query, limit, project } } })),
    enabled: wanted,
    retry: false,
  });

export const usePatterns = () =>
  useQuery({ queryKey: ['patterns'], queryFn: () => ask(api.GET('/api/v1/patterns')), staleTime: 60_000 });

export type UsageBy = 'agent' | 'model' | 'project' | 'task' | 'run' | 'template' | 'outcome' | 'day';

export const useUsage = (by: UsageBy, since?: string, project?: string, across?: UsageBy) =>
  useQuery({
    queryKey: ['usage', by, since ?? null, project ?? null, across ?? null],
    queryFn: () => ask(api.GET('/api/v1/usage', { params: { query: { by, since, project, across } } })),
  });

const isRunId = (id: string) => id.startsWith('run_');

export const useDiff = (id: string) =>
  useQuery({
    queryKey: ['of', id, 'diff'],
    queryFn: () =>
      isRunId(id)
        ? ask(api.GET('/api/v1/runs/{run_id}/diff', { params: { path: { run_id: id } } }))
        : ask(api.GET('/api/v1/tasks/{task_id}/diff', { params: { path: { task_id: id } } })),
    retry: false,
  });

const UNREAD_MS = 2000;

/** The messages to a task. Delivery is not an event, so it is polled. */
export const useMessages = (id: string): PersonMessage[] =>
  useQuery({
    queryKey: ['of', id, 'messages'],
    queryFn: () => ask(api.GET('/api/v1/tasks/{task_id}/messages', { params: { path: { task_id: id } } })),
    refetchInterval: ({ state }) =>
      state.data?.some((message) => message.state === 'waiting') ? UNREAD_MS : false,
  }).data ?? [];

export const useMergePreview = (id: string, wanted: boolean) =>
  useQuery({
    queryKey: ['merge', id],
    queryFn: () =>
      isRunId(id)
        ? ask(api.GET('/api/v1/runs/{run_id}/merge', { params: { path: { run_id: id } } }))
        : ask(api.GET('/api/v1/tasks/{task_id}/merge', { params: { path: { task_id: id } } })),
    enabled: wanted,
    retry: false,
    // People commit to the base without anybody telling.
    staleTime: 10_000,
  });

/** A pull request as its forge tells it now; asked for only where somebody wants to read it. */
export const usePullRequest = (id: string, wanted: boolean) =>
  useQuery({
    queryKey: ['pr', id],
    queryFn: () =>
      isRunId(id)
        ? ask(api.GET('/api/v1/runs/{run_id}/pr', onRun(id)))
        : ask(api.GET('/api/v1/tasks/{task_id}/pr', onTask(id))),
    enabled: wanted,
    retry: false,
  });

export const useLocks = () =>
  useQuery({
    queryKey: ['locks'],
    queryFn: () => ask(api.GET('/api/v1/locks')),
    refetchInterval: 5000,
  });

type TaskAction = 'cancel' | 'check' | 'retry' | 'requeue' | 'archive';
type RunAction = 'cancel' | 'pause' | 'resume' | 'archive';

const onTask = (id: string) => ({ params: { path: { task_id: id } } });
const onRun = (id: string) => ({ params: { path: { run_id: id } } });

export type Marks = components['schemas']['MarkBody'];

export const actions = {
  mark: (id: string, marks: Partial<Marks>): Promise<Work> =>
    ask(
      api.POST('/api/v1/work/{work_id}/mark', {
        params: { path: { work_id: id } },
        // What is not named stays as it is.
        body: marks as Marks,
      }),
    ),
  task: (id: string, action: TaskAction): Promise<Work> =>
    ask(api.POST(`/api/v1/tasks/{task_id}/${action}`, onTask(id))),
  run: (id: string, action: RunAction): Promise<Work> =>
    ask(api.POST(`/api/v1/runs/{run_id}/${action}`, onRun(id))),
  resume: (id: string, message: string | null, comments = false): Promise<Work> =>
    ask(
      api.POST('/api/v1/tasks/{task_id}/resume', {
        ...onTask(id),
        body: { message, merge: false, comments },
      }),
    ),
  /** Tell the agent of a task under way something: at once, or with its next attempt. */
  say: (id: string, message: string) =>
    ask(api.POST('/api/v1/tasks/{task_id}/say', { ...onTask(id), body: { message } })),
  /** Have more done about work that has ended: a task goes on, a run is followed by a new task. */
  follow: (id: string, message: string | null, comments = false): Promise<Work> =>
    isRunId(id)
      ? ask(api.POST('/api/v1/runs/{run_id}/follow_up', { ...onRun(id), body: { message, comments } }))
      : actions.resume(id, message, comments),
  answer: async (id: string, token: string, answer: string): Promise<Work> => {
    await ask(
      api.POST('/api/v1/questions/{token}/answer', { params: { path: { token } }, body: { answer } }),
    );
    return ask(api.GET('/api/v1/work/{work_id}', { params: { path: { work_id: id } } }));
  },
  deliver: async (work: Work) => {
    if (work.delivery && work.delivery.mode !== 'pr') return actions.merge(work.id);
    return isRunId(work.id)
      ? ask(api.POST('/api/v1/runs/{run_id}/pr', onRun(work.id)))
      : ask(api.POST('/api/v1/tasks/{task_id}/pr', onTask(work.id)));
  },
  undoMerge: (id: string) =>
    isRunId(id)
      ? ask(api.POST('/api/v1/runs/{run_id}/merge/undo', onRun(id)))
      : ask(api.POST('/api/v1/tasks/{task_id}/merge/undo', onTask(id))),
  /** Merge a branch; anyway is for one whose work has not come to what was asked for. */
  merge: async (id: string, anyway = false) => {
    const body = anyway ? ({ force: true, verify: true, style: 'merge' } as const) : undefined;
    for (;;) {
      const merged = isRunId(id)
        ? await ask(api.POST('/api/v1/runs/{run_id}/merge', { ...onRun(id), body }))
        : await ask(api.POST('/api/v1/tasks/{task_id}/merge', { ...onTask(id), body }));
      if (merged.status === 'merged') return merged;
    }
  },
};

/** Something that a person does; what the daemon then tells of the work is shown at once. */
export function useAction<Input, Output>(does: (input: Input) => Promise<Output>) {
  const queries = useQueryClient();
  return useMutation<Output, ApiError, Input>({
    mutationFn: does,
    onSuccess: (told) => {
      if (told && typeof told === 'object' && 'created_at' in told)
        put(queries, told as unknown as Task | Run);
      else refreshNeeds(queries);
    },
  });
}
