import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { clock, money, secondsBetween, shortCommit } from '../../model/format';
import type { State } from '../../model/work';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { ScoreChart } from './score_chart';
import { taskOf } from './step_facts';
import { within, wordsFor } from './within';

export interface Iteration {
  number: number;
  verdict: string;
  score: number | null;
  problem: string | null;
  commit: string | null;
  task: Step | null;
  said: string;
}

interface Told {
  iteration?: number;
  verdict?: string;
  score?: number | null;
  problem?: string | null;
}

/** The iterations of a loop as its steps tell them, the one at work too. */
export function iterationsOf(steps: Step[]): Iteration[] {
  const found: Iteration[] = [];
  const measured = steps.find((step) => step.kind === 'score');
  const begun = steps.findIndex((step) => step.kind === 'progress');
  if (measured && steps.indexOf(measured) < begun) {
    const value = (measured.result as { value: number | null } | null)?.value ?? null;
    found.push({
      number: 0,
      verdict: 'start',
      score: value,
      problem: null,
      commit: null,
      task: null,
      said: '',
    });
  }
  for (const step of steps) {
    const last = found.at(-1);
    const told = step.data as Told;
    if (step.kind === 'progress' && told.iteration !== undefined) {
      const same = last?.number === told.iteration ? last : null;
      const facts = {
        verdict: told.verdict ?? 'working',
        score: told.score ?? null,
        problem: told.problem ?? null,
      };
      if (same) Object.assign(same, facts);
      else found.push({ number: told.iteration, commit: null, task: null, said: '', ...facts });
    } else if (last && step.kind === 'task') {
      last.task = step;
      last.said = oneLine(taskOf(step)?.text ?? '');
    } else if (last && step.kind === 'commit' && typeof step.result === 'string') last.commit = step.result;
  }
  return found;
}

function signOf(change: number): string {
  if (change === 0) return '';
  return change > 0 ? '+' : '−';
}

const VERDICTS: Record<string, [State, string, string]> = {
  start: ['todo', 'start', 'dim'],
  pass: ['ok', 'passed', 'c-ok'],
  keep: ['ok', 'kept', 'c-ok'],
  progress: ['said', 'not yet', 'dim'],
  discard: ['cancelled', 'reverted', 'dim'],
  fail: ['bad', 'failed', 'c-bad'],
  working: ['run', 'at work', 'c-go'],
};

export function Loop({ run, steps }: { run: Run; steps: Step[] }) {
  const iterations = iterationsOf(steps);
  const minimizes = run.spec.direction === 'minimize';
  const scored = iterations.some((one) => one.score !== null);
  const kept = iterations.filter((one) => one.verdict === 'keep' || one.verdict === 'pass');
  const best = kept.at(-1)?.number;
  return (
    <>
      {scored && <ScoreChart run={run} iterations={iterations} />}
      <section className="panel scrollx">
        <table className="table cardy">
          <thead>
            <tr>
              <th className="num">#</th>
              <th>Verdict</th>
              {scored && <th className="num">Score</th>}
              {scored && <th className="num">Change</th>}
              <th>Summary</th>
              <th className="num">Duration</th>
              <th className="num">Cost</th>
              <th>Commit</th>
            </tr>
          </thead>
          <tbody>
            {iterations.toReversed().map((one) => {
              const [is, called, coloured] = VERDICTS[one.verdict] ?? ['todo', one.verdict, ''];
              const state = is === 'run' ? within(run, is) : is;
              const [words, colour] = state === is ? [called, coloured] : [wordsFor(state), 'dim'];
              const before = iterations.findLast(
                (other) => other.number < one.number && ['start', 'keep'].includes(other.verdict),
              );
              const change = one.score !== null && before?.score ? one.score - before.score : null;
              const better = change !== null && change < 0 === minimizes && change !== 0;
              const bestRow = one.number === best ? 'best' : '';
              const row = state === 'run' ? 'here' : bestRow;
              return (
                <tr key={one.number} className={row}>
                  <td className="num">{one.number}</td>
                  <td>
                    <span className={`tag ${colour}`}>
                      <Glyph state={state} />
                      {words}
                    </span>
                  </td>
                  {scored && <td className="num strong">{one.score ?? ''}</td>}
                  {scored && (
                    <td className={`num small desk ${better ? 'c-ok' : 'faint'}`}>
                      {change !== null && `${signOf(change)}${Math.abs(round(change))}`}
                    </td>
                  )}
                  <td className="full">
                    <What one={one} />
                  </td>
                  <td className="num faint desk">
                    {one.task?.ended_at && clock(secondsBetween(one.task.started_at, one.task.ended_at))}
                  </td>
                  <td className="num faint desk">{costOf(one)}</td>
                  <td className="desk">
                    <code className="faint">{one.commit && shortCommit(one.commit)}</code>
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </section>
    </>
  );
}

/** The cost of an iteration; – if its agent reported none. */
function costOf({ task }: Iteration): string {
  const usd = task?.ended_at ? taskOf(task)?.cost_usd : undefined;
  return usd === undefined ? '' : money(usd, '–');
}

const round = (value: number): number => Math.round(value * 100) / 100;

function What({ one }: { one: Iteration }) {
  if (one.verdict === 'start') return <span className="dim">Baseline</span>;
  const text = one.problem ?? (one.said || one.task?.label || '');
  const shown = <Said className={one.problem ? 'c-bad' : 'dim'}>{text}</Said>;
  if (!one.task?.subject) return shown;
  return (
    <Link to="/tasks/$id/{-$tab}" params={{ id: one.task.subject }}>
      {shown}
    </Link>
  );
}
