import type { Run } from '../../api/client';
import { capital } from '../../model/format';
import type { State } from '../../model/work';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';
import { within } from './within';

/** The name of a phase, details, and its state when it is past. */
export type Phase = [name: string, about: string, after?: State];

/** The phases of a run with the current one. */
export function Phases({ run, phases, at }: { run: Run; phases: Phase[]; at: number }) {
  return (
    <ol className="phases panel">
      {phases.map(([name, about, after = 'ok'], place) => {
        const past = run.status === 'completed' || place < at;
        const now = place === at && !past;
        let state = within(run, now ? 'run' : 'todo');
        if (past) state = after;
        else if (now && run.status === 'failed') state = 'bad';
        return (
          <li key={name} className={LOOKS[state] ?? (past || now ? '' : 'later')}>
            <div className="k">
              <Glyph state={state} label={labelOf(state, past)} />
              {capital(name)}
            </div>
            <div className="d cut">
              <Said>{about}</Said>
            </div>
          </li>
        );
      })}
    </ol>
  );
}

/** The state of a past phase; isComplete tells whether the phase did all its work. */
export function afterwards(run: Run, isComplete: boolean): State {
  if (isComplete) return 'ok';
  return run.status === 'failed' ? 'bad' : 'none';
}

const LOOKS: Partial<Record<State, string>> = { run: 'now', you: 'you' };

function labelOf(state: State, past: boolean): string | undefined {
  if (state === 'ok') return 'done';
  if (state === 'none') return past ? 'ended incomplete' : 'not started';
  return state === 'cancelled' ? 'stopped' : undefined;
}

/** The commands of a spec's checks. */
export function commandsOf(checks: unknown): string[] {
  if (!Array.isArray(checks)) return [];
  return checks.map((check) =>
    typeof check === 'string' ? check : String(check.command ?? check.kind ?? ''),
  );
}
