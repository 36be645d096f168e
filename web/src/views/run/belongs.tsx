import type { CSSProperties } from 'react';
import { isRun, type Run, type Work } from '../../api/client';
import { useInside, useOne } from '../../api/queries';
import { price, priceOf } from '../../model/price';
import { progressOf, stateOf, whoOf } from '../../model/work';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Said } from '../../parts/text';
import { WorkLink } from '../work_link';

/** The run that this one is inside of with all that is in it, and the runs inside this one. */
export function Belongs({ run }: { run: Run }) {
  const parent = useOne(run.parent_id ?? '', !!run.parent_id).data;
  const inside = useInside(run.parent_id ? [run.parent_id, run.id] : [run.id]);
  const own = (inside.get(run.id) ?? []).filter(isRun);
  const beside = parent ? (inside.get(parent.id) ?? []) : [run];
  if (!parent && own.length === 0) return null;
  const depth = parent ? 1 : 0;
  return (
    <section className="section" aria-labelledby="h-belongs">
      <header>
        <h2 id="h-belongs">Related</h2>
      </header>
      <ul className="nest panel">
        {parent && <Row work={parent} depth={0} />}
        {beside.flatMap((work) => [
          <Row key={work.id} work={work} depth={depth} here={work.id === run.id} />,
          ...(work.id === run.id
            ? own.map((child) => <Row key={child.id} work={child} depth={depth + 1} />)
            : []),
        ])}
      </ul>
    </section>
  );
}

function Row({ work, depth, here }: { work: Work; depth: number; here?: boolean }) {
  const cost = priceOf(work);
  const progress = isRun(work) ? progressOf(work) : '';
  const kind = isRun(work) ? [work.pattern, ...(progress === work.pattern ? [] : [progress])] : ['task'];
  return (
    <li style={{ '--d': depth, ...(depth > 0 ? { '--e': 'block' } : {}) } as CSSProperties}>
      <span className="t">
        <Glyph state={stateOf(work)} />
        <WorkLink work={work} className={here ? 'cut strong' : 'cut'}>
          <Said>{work.title}</Said>
        </WorkLink>
        <span className="faint desk">{[...kind, ...(here ? ['current'] : [])].join(', ')}</span>
      </span>
      <span className="faint cut desk">{whoOf(work)}</span>
      <span className="num desk">
        {work.started_at && <Elapsed from={work.started_at} to={work.ended_at} />}
      </span>
      <span className="num">{cost ? price(cost) : ''}</span>
    </li>
  );
}
