import { useMemo, useState } from 'react';
import { isRun, type Run, type Work } from '../../api/client';
import { useStepsOf } from '../../api/queries';
import { clock, counted, secondsBetween, shortId } from '../../model/format';
import { hasEnded, parentOf, progressOf, stateOf, whoOf } from '../../model/work';
import { Button, Empty } from '../../parts/controls';
import { Legend } from '../../parts/glyph';
import { Graph, type Node } from '../graph';
import { type After, afterIn, hasPlan } from './plans';

const MOST = 120;
/** With more than that, runs that have ended are shown without what is inside them. */
const CROWD = 60;

function aboutOf(work: Work): string {
  const facts = isRun(work) ? [work.pattern, progressOf(work)] : [whoOf(work)];
  if (work.started_at && work.ended_at)
    return [facts[0], clock(secondsBetween(work.started_at, work.ended_at))].join(', ');
  if (work.status === 'blocked' || work.status === 'queued') facts.push(work.status);
  return facts.filter((fact, place) => fact && facts.indexOf(fact) === place).join(', ');
}

/** Work as nodes, the parts of a run inside it. */
function nodesOf(work: Work[], folds: boolean, after: After): Node[] {
  const inside = new Map<string, Work[]>();
  const orphans = new Map<string, Work[]>();
  const ids = new Set(work.map((item) => item.id));
  for (const item of work) {
    const parent = parentOf(item) ?? '';
    // A run that is not listed with its parts stands for them all the same.
    const key = ids.has(parent) ? parent : '';
    if (key || !parent) inside.set(key, [item, ...(inside.get(key) ?? [])]);
    else orphans.set(parent, [item, ...(orphans.get(parent) ?? [])]);
  }
  const node = (item: Work): Node => {
    const parts = inside.get(item.id) ?? [];
    const folded = folds && hasEnded(item) && parts.length > 0;
    return {
      id: item.id,
      title: item.title,
      about: folded ? `${aboutOf(item)}, ${counted(parts.length, 'part')}` : aboutOf(item),
      state: stateOf(item),
      work: item.id,
      after: [...(isRun(item) ? [] : item.depends_on), ...(after.get(item.id) ?? [])],
      inside: folded ? [] : parts.map(node),
    };
  };
  const listed = (inside.get('') ?? []).map(node).reverse();
  const unlisted = [...orphans].map(([parent, parts]) => ({
    id: parent,
    title: shortId(parent),
    about: counted(parts.length, 'part'),
    state: 'todo' as const,
    work: parent,
    after: [],
    inside: folds && parts.every(hasEnded) ? [] : parts.map(node),
  }));
  return [...listed, ...unlisted];
}

/** The newest work, so much of it: with a run all that is inside it, unless that is folded. */
function newest(work: Work[], folds: boolean): Work[] {
  const inside = Map.groupBy(work, (item) => parentOf(item) ?? '');
  const ids = new Set(work.map((item) => item.id));
  const shown: Work[] = [];
  const add = (item: Work): number => {
    shown.push(item);
    const counts = (inside.get(item.id) ?? []).map(add);
    return 1 + (folds && hasEnded(item) ? 0 : counts.reduce((sum, count) => sum + count, 0));
  };
  let boxes = 0;
  for (const item of work.filter((one) => !ids.has(parentOf(one) ?? ''))) {
    if (boxes >= MOST) break;
    boxes += add(item);
  }
  return shown;
}

/** Dependencies, and what is inside what. */
export function WorkGraph({ work, more }: { work: Work[]; more: boolean }) {
  const [unfolded, unfold] = useState(false);
  const folds = work.length > CROWD && !unfolded;
  const shown = useMemo(() => newest(work, folds), [work, folds]);
  const planned = useMemo(
    () => shown.filter((item): item is Run => isRun(item) && hasPlan(item) && !(folds && hasEnded(item))),
    [shown, folds],
  );
  const ids = useMemo(() => planned.map(({ id }) => id), [planned]);
  const steps = useStepsOf(ids);
  const after = useMemo(
    () => new Map(planned.flatMap((run) => [...afterIn(run, steps.get(run.id) ?? [])])),
    [planned, steps],
  );
  const nodes = useMemo(() => nodesOf(shown, folds, after), [shown, folds, after]);
  const count = (sum: number, item: Work) =>
    sum + (isRun(item) ? 0 : item.depends_on.length) + (after.get(item.id)?.length ?? 0);
  const lines = shown.reduce(count, 0);
  if (shown.length === 0) return <Empty title="No work yet" />;
  return (
    <section className="panel box">
      <header>
        <h2>Dependencies</h2>
        <span className="faint">
          {more || work.length > shown.length
            ? `latest ${shown.length} items`
            : counted(shown.length, 'item')}
        </span>
        {work.length > CROWD && (
          <Button small look="quiet" onClick={() => unfold(!unfolded)}>
            {unfolded ? 'Hide finished' : 'Show finished'}
          </Button>
        )}
        <Legend
          of={{ run: 'at work', ok: 'verified', said: 'unverified', blocked: 'waiting', bad: 'failed' }}
        />
      </header>
      <Graph
        nodes={nodes}
        label={`${counted(shown.length, 'item')} and ${counted(lines, 'dependency', 'dependencies')}`}
      />
    </section>
  );
}
