import type { Run, Step } from '../../api/client';
import { money } from '../../model/format';
import type { State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Table } from '../../parts/table';
import { Elapsed, Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { WorkTo } from '../work_link';
import { stepState, taskOf } from './step_facts';
import { within, wordsFor } from './within';

interface Item {
  number: number;
  title: string;
  work: Step | null;
  merged: Step | null;
}

interface Outcome {
  status: string;
  reason: string | null;
}

const titleOf = (item: unknown): string => {
  if (typeof item === 'string') return item;
  const { title, prompt } = item as { title?: string; prompt?: string };
  return title ?? prompt ?? '';
};

/** The items of the list; each has a branch of the run's steps to itself. */
function itemsOf(run: Run, steps: Step[]): Item[] {
  const found = ((run.spec.items as unknown[] | undefined) ?? []).map(
    (item, place): Item => ({
      number: place + 1,
      title: oneLine(titleOf(item)),
      work: null,
      merged: null,
    }),
  );
  for (const step of steps) {
    const item = found[Number(step.position.split('.')[1] ?? 0) - 1];
    if (item && (step.kind === 'task' || step.kind === 'run')) item.work = step;
    if (item && step.kind === 'merge') item.merged = step;
  }
  return found;
}

/** A row for each item, in the order of the list. */
export function Batch({ run, steps }: { run: Run; steps: Step[] }) {
  const items = itemsOf(run, steps);
  const outcomes = (run.result as { items?: Outcome[] } | null)?.items ?? [];
  const ended = items.filter((item) => item.work?.ended_at).length;
  if (items.length === 0) return <Empty title="The list is empty" />;
  return (
    <>
      <p className="dim">
        {ended} of {items.length} items have ended; at most {String(run.spec.at_once ?? 4)} run at the same
        time.
      </p>
      <Table columns={[{ num: '#' }, 'Item', 'Outcome', { num: 'Time' }, { num: 'Cost' }]}>
        {items.map((item) => (
          <Row key={item.number} run={run} item={item} outcome={outcomes[item.number - 1]} />
        ))}
      </Table>
    </>
  );
}

function stateOfItem(run: Run, { work }: Item, outcome: Outcome | undefined): State {
  if (!work) return within(run, 'todo');
  return outcome?.status === 'failed' ? 'bad' : stepState(work, run);
}

function Row({ run, item, outcome }: { run: Run; item: Item; outcome: Outcome | undefined }) {
  const { work, merged } = item;
  const facts = work && taskOf(work);
  const problem = (merged?.result as { problem?: string | null } | null)?.problem;
  const state = stateOfItem(run, item, outcome);
  const said = outcome?.reason ?? problem ?? work?.error ?? facts?.reason ?? facts?.text ?? wordsFor(state);
  return (
    <tr>
      <td className="num faint">{item.number}</td>
      <td className="full">
        <span className="t">
          <Glyph state={state} />
          <WorkTo id={work?.subject}>
            <Said>{item.title}</Said>
          </WorkTo>
        </span>
      </td>
      <td className="dim">
        {merged?.ended_at && !problem && <span className="c-ok">merged </span>}
        <Said>{oneLine(said)}</Said>
      </td>
      <td className="num faint">
        {work && <Elapsed from={work.started_at} to={work.ended_at ?? run.ended_at} />}
      </td>
      <td className="num">{facts?.cost_usd === undefined ? '' : money(facts.cost_usd, '–')}</td>
    </tr>
  );
}
