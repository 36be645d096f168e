import { Link } from '@tanstack/react-router';
import type { Run, Step } from '../../api/client';
import { capital, sentence } from '../../model/format';
import { hasEnded } from '../../model/work';
import { Empty } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Elapsed, Said } from '../../parts/text';
import { oneLine } from '../task/line_text';
import { stepState, taskOf } from './step_facts';
import { wordsFor } from './within';

interface Candidate {
  number: number;
  task: Step;
  score: number | null;
  problem: string | null;
  changes: string;
}

/** The candidates as their steps tell them; each has a branch of the run's steps to itself. */
function candidatesOf(steps: Step[]): Candidate[] {
  const found = new Map<number, Candidate>();
  for (const step of steps) {
    const number = Number(step.position.split('.')[1] ?? 0);
    const known = found.get(number);
    if (!number) continue;
    if (step.kind === 'task' && !known)
      found.set(number, { number, task: step, score: null, problem: null, changes: '' });
    else if (known && step.kind === 'score') {
      const score = step.result as { value: number | null; problem: string | null } | null;
      Object.assign(known, { score: score?.value ?? null, problem: score?.problem ?? null });
    } else if (known && step.kind === 'changes')
      known.changes =
        String(step.result ?? '')
          .trim()
          .split('\n')
          .at(-1) ?? '';
  }
  return [...found.values()].sort((a, b) => a.number - b.number);
}

/** A column for each who does the same. */
export function BestOf({ run, steps }: { run: Run; steps: Step[] }) {
  const candidates = candidatesOf(steps);
  const winner = run.progress.winner;
  const why = (run.result as { reason?: string } | null)?.reason;
  if (candidates.length === 0) return <Empty title="Nobody has begun yet" />;
  return (
    <>
      <ul className="candidates">
        {candidates.map((candidate) => (
          <li key={candidate.number} className={`panel ${candidate.number === winner ? 'won' : ''}`}>
            <Column run={run} candidate={candidate} won={candidate.number === winner} />
          </li>
        ))}
      </ul>
      {why && (
        <div className="note">
          <Glyph state={run.spec.eval ? 'ok' : 'said'} />
          <Said>{sentence(capital(why))}</Said>
        </div>
      )}
      {!why && !hasEnded(run) && (
        <p className="faint">
          {run.spec.eval ? (
            <>
              Then <code>{String(run.spec.eval)}</code> measures each, and the best of those that pass is
              merged.
            </>
          ) : (
            'Then a judge chooses among the candidates that pass.'
          )}
        </p>
      )}
    </>
  );
}

function Column({ run, candidate, won }: { run: Run; candidate: Candidate; won: boolean }) {
  const { task } = candidate;
  const facts = taskOf(task);
  const state = stepState(task, run);
  return (
    <>
      <h2>
        <Glyph state={state} />
        <Link to="/tasks/$id/{-$tab}" params={{ id: task.subject ?? '' }}>
          Candidate {candidate.number}
        </Link>
        {won && <span className="c-ok">winner</span>}
        <Elapsed className="faint" from={task.started_at} to={task.ended_at ?? run.ended_at} />
      </h2>
      {candidate.score !== null && <p className="score">{candidate.score}</p>}
      {candidate.problem && (
        <p className="c-bad">
          <Said>{candidate.problem}</Said>
        </p>
      )}
      <p className="dim">
        <Said>{oneLine(facts?.reason ?? facts?.text ?? wordsFor(state))}</Said>
      </p>
      <p className="faint small">
        {facts?.agent} {candidate.changes && <Said>{candidate.changes}</Said>}
      </p>
    </>
  );
}
