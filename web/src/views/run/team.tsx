import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import type { CheckResult, Run, Step } from '../../api/client';
import { counted } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Icon } from '../../parts/icon';
import { Said } from '../../parts/text';
import { layersOf, type Part, phaseOf, planned, planOf } from './plan';

const PHASES = ['intake', 'plan', 'work', 'verify', 'review'];

/** Where a team is: what it has done, does and will do. */
export function Phases({ run, steps }: { run: Run; steps: Step[] }) {
  const at = PHASES.indexOf(phaseOf(run));
  const parts = planOf(steps, planned(steps).at(-1) ?? 0);
  const merged = parts.filter((part) => part.state === 'merged').length;
  const working = parts.filter((part) => part.state === 'run').length;
  const about: Record<string, string> = {
    plan: parts.length > 0 ? counted(parts.length, 'part') : '',
    work:
      parts.length > 0 ? `${merged} of ${parts.length} merged${working ? `, ${working} at work` : ''}` : '',
    verify: commandsOf(run).join(', '),
    review: 'four questions',
  };
  const ended = hasEnded(run);
  return (
    <ol className="phases panel">
      {PHASES.map((phase, place) => {
        const now = place === at && !ended;
        const past = ended ? run.status === 'completed' : place < at;
        const state: State = now ? 'run' : past ? 'ok' : ended && place === at ? 'bad' : 'todo';
        return (
          <li key={phase} className={now ? 'now' : past ? '' : 'later'}>
            <div className="k">
              <Glyph state={state} />
              {phase.charAt(0).toUpperCase() + phase.slice(1)}
            </div>
            <div className="d cut">
              <Said>{about[phase] ?? ''}</Said>
            </div>
          </li>
        );
      })}
    </ol>
  );
}

function commandsOf(run: Run): string[] {
  const verify = run.spec.verify;
  if (!Array.isArray(verify)) return [];
  return verify.map((check) =>
    typeof check === 'string' ? check : String(check.command ?? check.kind ?? ''),
  );
}

interface Told {
  number: number;
  review: Review | null;
  checks: CheckResult[];
  problem: string | null;
}

interface Review {
  quality: boolean;
  consistency: boolean;
  goal_aligned: boolean;
  goal_complete: boolean;
  feedback: string;
}

const QUESTIONS: [keyof Review, string, string][] = [
  ['quality', 'Quality', 'is it good work'],
  ['consistency', 'Consistency', 'do the parts fit'],
  ['goal_aligned', 'Goal aligned', 'this and nothing else'],
  ['goal_complete', 'Goal complete', 'is it reached'],
];

export function Team({ run, steps }: { run: Run; steps: Step[] }) {
  const numbers = planned(steps);
  const told = ((run.result as { iterations?: Told[] } | null)?.iterations ?? []) as Told[];
  const last = numbers.at(-1);
  if (last === undefined) {
    return (
      <Empty title="There is no plan yet">
        <p>The planner is asked first. Its parts appear here as soon as it has answered.</p>
      </Empty>
    );
  }
  return (
    <section className="panel">
      <div className="box">
        <header>
          <h2>Plan of iteration {last}</h2>
          <span className="legend end">
            <span>
              <Glyph state="merged" /> merged
            </span>
            <span>
              <Glyph state="run" /> at work
            </span>
            <span>
              <Glyph state="blocked" /> waits
            </span>
          </span>
        </header>
        <Graph parts={planOf(steps, last)} gates={<Gates run={run} />} />
      </div>
      {told.toReversed().map((iteration) => (
        <Verdict key={iteration.number} iteration={iteration} parts={planOf(steps, iteration.number)} />
      ))}
    </section>
  );
}

const [WIDTH, COLUMN, ROW] = [184, 222, 68];

/** The parts by layers, with a line from each to what depends on it. */
function Graph({ parts, gates }: { parts: Part[]; gates: ReactNode }) {
  const layers = layersOf(parts);
  const rows = Math.max(...layers.map((layer) => layer.length), 2);
  const height = rows * ROW;
  const places = new Map<string, [number, number]>();
  layers.forEach((layer, column) => {
    layer.forEach((part, row) => {
      places.set(part.id, [column * COLUMN, (height - layer.length * ROW) / 2 + row * ROW]);
    });
  });
  const ends = parts.filter((part) => !parts.some((other) => other.dependsOn.includes(part.id)));
  const gate: [number, number] = [layers.length * COLUMN, height / 2 - ROW];
  const lines = parts.flatMap((part) =>
    part.dependsOn.map((id) => ({
      from: places.get(id),
      to: places.get(part.id),
      key: `${id} ${part.id}`,
      done: parts.find((other) => other.id === id)?.state === 'merged',
    })),
  );
  for (const part of ends) {
    lines.push({
      from: places.get(part.id),
      to: [gate[0], gate[1] + 16],
      key: part.id,
      done: part.state === 'merged',
    });
  }
  return (
    <div className="dag">
      <div className="plane" style={{ height, minWidth: layers.length * COLUMN + 130 }}>
        <svg className="edges" aria-hidden="true">
          {lines.map(
            ({ from, to, key, done }) =>
              from && to && <path key={key} className={done ? 'ok' : ''} d={curve(from, to)} />,
          )}
        </svg>
        {parts.map((part) => {
          const [left, top] = places.get(part.id) ?? [0, 0];
          return <Node key={part.id} part={part} left={left} top={top} />;
        })}
        <div className="gates" style={{ left: gate[0], top: gate[1] }}>
          {gates}
        </div>
      </div>
    </div>
  );
}

function curve([x1, y1]: [number, number], [x2, y2]: [number, number]): string {
  const [from, a, b] = [x1 + WIDTH, y1 + 28, y2 + 28];
  const half = (from + x2) / 2;
  return `M${from} ${a}C${half} ${a} ${half} ${b} ${x2} ${b}`;
}

const LOOKS: Partial<Record<State, string>> = { run: 'run', bad: 'bad', blocked: 'todo', todo: 'todo' };

function Node({ part, left, top }: { part: Part; left: number; top: number }) {
  const inside = (
    <>
      <span className="t">
        <Glyph state={part.state} />
        <Said className="cut">{part.title}</Said>
      </span>
      <span className="d cut block">
        <Said>{part.about}</Said>
      </span>
    </>
  );
  const look = `node ${LOOKS[part.state] ?? ''}`;
  const style = { left, top, width: WIDTH };
  return part.task ? (
    <Link className={look} style={style} to="/tasks/$id/{-$tab}" params={{ id: part.task }}>
      {inside}
    </Link>
  ) : (
    <div className={look} style={style}>
      {inside}
    </div>
  );
}

function Gates({ run }: { run: Run }) {
  const at = PHASES.indexOf(phaseOf(run));
  const done = run.status === 'completed';
  const state = (place: number): State =>
    done ? 'ok' : at === place && !hasEnded(run) ? 'run' : at > place ? 'ok' : 'todo';
  return (
    <>
      <div className="gate">
        <span className="t">
          <Glyph state={state(3)} />
          Gate: verify
        </span>
        <code className="cut block">{commandsOf(run).join(', ') || 'nothing'}</code>
      </div>
      <div className="gate">
        <span className="t">
          <Glyph state={state(4)} />
          Gate: review
        </span>
        four times yes
      </div>
    </>
  );
}

function Verdict({ iteration, parts }: { iteration: Told; parts: Part[] }) {
  const { review, checks } = iteration;
  const no =
    review && QUESTIONS.filter(([key]) => review[key] === false).map(([, name]) => name.toLowerCase());
  const good = review !== null && no?.length === 0 && checks.every((check) => check.passed);
  const merged = parts.filter((part) => part.state === 'merged').length;
  return (
    <details className="fold" open={!good}>
      <summary>
        <Icon name="right" className="chev" />
        <Glyph state={good ? 'ok' : 'bad'} />
        <b>Iteration {iteration.number}</b>
        <span className="dim cut">
          <Said>
            {good
              ? 'the reviewer said yes four times'
              : (iteration.problem ?? (no?.length ? `the reviewer said no to ${no.join(', ')}` : 'not done'))}
          </Said>
        </span>
      </summary>
      <div className="in">
        <p className="proofs">
          <span>
            <Glyph state={merged === parts.length ? 'merged' : 'bad'} />
            {merged} of {counted(parts.length, 'part')} merged
          </span>
          {checks.map((check) => (
            <span key={check.name}>
              <Glyph state={check.passed ? 'ok' : 'bad'} />
              <code>{check.name}</code>
            </span>
          ))}
        </p>
        {review && (
          <>
            <ul className="verdicts mt-3">
              {QUESTIONS.map(([key, name, asks]) => (
                <li key={key}>
                  <Glyph state={review[key] ? 'ok' : 'bad'} />
                  <div>
                    <b>{name}</b>
                    <div className="q">{asks}</div>
                  </div>
                </li>
              ))}
            </ul>
            {review.feedback && (
              <p className="dim mt-3">
                “<Said>{review.feedback}</Said>”
              </p>
            )}
          </>
        )}
      </div>
    </details>
  );
}
