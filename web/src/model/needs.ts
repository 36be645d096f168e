import { isRun, type Task, type Work } from '../api/client';
import { asksYou, isMergeable, isUndelivered, latest, parentOf } from './work';

export type Need =
  | { kind: 'question'; work: Work; at: string; behind: number }
  | { kind: 'login'; agent: string; tasks: Task[]; at: string; evidence: string }
  | { kind: 'failure'; work: Work; at: string }
  | { kind: 'delivery'; work: Work; at: string }
  | { kind: 'merge'; work: Work; at: string }
  | { kind: 'flag'; work: Work; at: string };

const RANK = { question: 0, login: 1, failure: 2, delivery: 3, merge: 4, flag: 5 };

/** Everything that waits for a person, what holds up most work first. */
export function needsOf(under: Work[], over: Work[], flagged: Work[], now: number): Need[] {
  const needs: Need[] = [];
  const isDue = (work: Work) => !isSnoozed(work, now);
  const active = under.filter(isDue);
  const ended = over.filter(isDue);
  for (const work of active.filter(asksYou)) {
    needs.push({ kind: 'question', work, at: askedAt(work), behind: behind(work, active) });
  }
  const failed = ended.filter((work) => work.status === 'failed' && !parentOf(work) && !work.merged_at);
  const refused = new Map<string, Task[]>();
  for (const work of failed) {
    const last = isRun(work) ? undefined : latest(work);
    if (!isRun(work) && last?.failure === 'authentication') {
      refused.set(last.agent, [...(refused.get(last.agent) ?? []), work]);
    } else needs.push({ kind: 'failure', work, at: work.ended_at ?? work.created_at });
  }
  for (const [agent, tasks] of refused) {
    const newest = tasks[0];
    const evidence = newest ? (latest(newest)?.evidence ?? newest.reason ?? '') : '';
    needs.push({ kind: 'login', agent, tasks, at: newest?.ended_at ?? '', evidence });
  }
  for (const work of ended.filter((item) => isUndelivered(item) && !parentOf(item))) {
    needs.push({ kind: 'delivery', work, at: work.delivery?.updated_at ?? work.created_at });
  }
  for (const work of ended.filter((item) => isMergeable(item) && !item.delivery && !parentOf(item))) {
    needs.push({ kind: 'merge', work, at: work.ended_at ?? work.created_at });
  }
  const told = new Set(needs.flatMap((need) => (need.kind === 'login' ? [] : [need.work.id])));
  for (const work of flagged.filter((item) => isDue(item) && item.flagged_at && !told.has(item.id))) {
    needs.push({ kind: 'flag', work, at: work.flagged_at ?? work.created_at });
  }
  return needs.sort(
    (a, b) =>
      RANK[a.kind] - RANK[b.kind] ||
      held(b) - held(a) ||
      (a.kind === 'question' ? sooner(a, b) : sooner(b, a)),
  );
}

/** Whether a person wants to see it again only later. */
export const isSnoozed = (work: Work, now: number): boolean =>
  !!work.snoozed_until && Date.parse(work.snoozed_until) > now;

const sooner = (a: Need, b: Need): number => a.at.localeCompare(b.at);
const held = (need: Need): number => (need.kind === 'question' ? need.behind : 0);

function askedAt(work: Work): string {
  return work.questions[0]?.asked_at ?? work.started_at ?? work.created_at;
}

/** How many tasks wait for this one. */
function behind(work: Work, active: Work[]): number {
  return active.filter((other) => !isRun(other) && other.depends_on.includes(work.id)).length;
}

export const keyOf = (need: Need): string =>
  need.kind === 'login' ? `login ${need.agent}` : `${need.kind} ${need.work.id}`;
