import type { QueryClient } from '@tanstack/react-query';
import { api, ask, isRun, type Work } from './client';
import { type HistoryEvent, history } from './history';
import { type Filter, isAnswered, type Pages, replaced } from './lists';
import { refreshNeeds } from './needs';

const BATCH_MS = 60;
const SLOW_MS = 1000;
const MOST_AT_ONCE = 20;
/** Lists with keys of their own. */
const KEPT = new Set(['learning', 'note', 'template']);

/** Keeps what was read as the history says it is now; the returned function ends it. */
export function keepLive(queries: QueryClient): () => void {
  const changed = new Set<string>();
  const stale = new Set<string>();
  let quick: ReturnType<typeof setTimeout> | undefined;
  let slow: ReturnType<typeof setTimeout> | undefined;

  let needsReadAt = 0;
  /** At once, but not more often than once a second. */
  const needsChanged = () => {
    if (Date.now() - needsReadAt >= SLOW_MS) {
      needsReadAt = Date.now();
      refreshNeeds(queries);
      return;
    }
    stale.add('needs').add('sums');
    slow ??= setTimeout(refreshSlow, SLOW_MS);
  };
  const refresh = async () => {
    quick = undefined;
    const ids = [...changed];
    changed.clear();
    if (ids.length > 0) needsChanged();
    if (ids.length > MOST_AT_ONCE) {
      await queries.invalidateQueries({ queryKey: ['work'] });
      return;
    }
    await Promise.all(ids.map((id) => reread(queries, id)));
  };
  const refreshSlow = () => {
    slow = undefined;
    // Only the daemon can say what belongs to a list with such a filter.
    queries.invalidateQueries({
      predicate: ({ queryKey: [noun, kind, filter] }) =>
        noun === 'work' && kind === 'list' && isAnswered(filter as Filter),
    });
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
  if (work) show(queries, work);
}

/** Show a piece of work that a person has just changed, and what follows from that. */
export function put(queries: QueryClient, work: Work): void {
  show(queries, work);
  refreshNeeds(queries);
}

/** Show a piece of work, as the daemon has just told it, wherever it stands. */
function show(queries: QueryClient, work: Work): void {
  queries.setQueryData(['work', 'one', work.id], work);
  for (const [key, pages] of queries.getQueriesData<Pages>({ queryKey: ['work', 'list'] })) {
    if (pages) queries.setQueryData(key, replaced(pages, key[2] as Filter, work));
  }
  if (isRun(work)) queries.invalidateQueries({ queryKey: ['steps', work.id] });
  queries.invalidateQueries({ queryKey: ['of', work.id] });
  queries.invalidateQueries({ queryKey: ['merge', work.id] });
}
