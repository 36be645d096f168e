import type { QueryClient } from '@tanstack/react-query';
import { api, ask, isRun, type Work } from './client';
import { type HistoryEvent, history } from './history';
import { type Filter, type Pages, replaced } from './lists';

const BATCH_MS = 60;
const SLOW_MS = 1000;
const MOST_AT_ONCE = 20;
/** What is listed under its own name. */
const KEPT = new Set(['learning', 'note', 'template']);

/** Keeps what was read as the history says it is now; the returned function ends it. */
export function keepLive(queries: QueryClient): () => void {
  const changed = new Set<string>();
  const stale = new Set<string>();
  let quick: ReturnType<typeof setTimeout> | undefined;
  let slow: ReturnType<typeof setTimeout> | undefined;

  const refresh = async () => {
    quick = undefined;
    const ids = [...changed];
    changed.clear();
    if (ids.length > MOST_AT_ONCE) {
      await queries.invalidateQueries({ queryKey: ['work'] });
      return;
    }
    await Promise.all(ids.map((id) => reread(queries, id)));
  };
  const refreshSlow = () => {
    slow = undefined;
    for (const key of stale) queries.invalidateQueries({ queryKey: [key] });
    stale.clear();
  };
  const take = (events: HistoryEvent[]) => {
    for (const event of events) {
      if (event.task_id) changed.add(event.task_id);
      if (event.run_id) changed.add(event.run_id);
      for (const key of concerned(event)) stale.add(key);
    }
    quick ??= setTimeout(refresh, BATCH_MS);
    slow ??= setTimeout(refreshSlow, SLOW_MS);
  };

  const ends = [
    history.onEvents(take),
    history.onRenewal(() => queries.invalidateQueries()),
    history.start(),
  ];
  return () => {
    clearTimeout(quick);
    clearTimeout(slow);
    for (const end of ends) end();
  };
}

function concerned(event: HistoryEvent): string[] {
  const [noun] = event.kind.split('.');
  if (noun === 'schedule') return ['schedules'];
  if (noun === 'account') return ['agents'];
  // A renamed one has another name in all that belongs to it.
  if (noun === 'project') return ['projects', 'work', 'schedules', 'learnings', 'notes', 'usage'];
  if (noun && KEPT.has(noun)) return [`${noun}s`];
  const keys = event.data.schedule_id ? ['daemon', 'usage', 'schedules'] : ['daemon', 'usage'];
  // What others are to be merged with is another then.
  return event.kind.endsWith('.merged') ? [...keys, 'merge'] : keys;
}

async function reread(queries: QueryClient, id: string): Promise<void> {
  const read = ask(api.GET('/api/v1/work/{work_id}', { params: { path: { work_id: id } } }));
  const work = await read.catch(() => null);
  if (work) put(queries, work);
}

/** Put a piece of work, as the daemon has just told it, wherever it is shown. */
export function put(queries: QueryClient, work: Work): void {
  queries.setQueryData(['work', 'one', work.id], work);
  for (const [key, pages] of queries.getQueriesData<Pages>({ queryKey: ['work', 'list'] })) {
    if (pages) queries.setQueryData(key, replaced(pages, key[2] as Filter, work));
  }
  if (isRun(work)) queries.invalidateQueries({ queryKey: ['steps', work.id] });
  queries.invalidateQueries({ queryKey: ['of', work.id] });
  queries.invalidateQueries({ queryKey: ['merge', work.id] });
}
