import type { Run } from '../../api/client';
import { capital } from '../../model/format';
import { hasEnded, type State } from '../../model/work';
import { Glyph } from '../../parts/glyph';
import { Said } from '../../parts/text';

/** What a phase is called, and what is known of it. */
export type Phase = [name: string, about: string];

/** How far a run is in what it does one after the other. */
export function Phases({ run, phases, at }: { run: Run; phases: Phase[]; at: number }) {
  const ended = hasEnded(run);
  return (
    <ol className="phases panel">
      {phases.map(([name, about], place) => {
        const now = place === at && !ended;
        const past = ended ? run.status === 'completed' || place < at : place < at;
        const state: State = now ? 'run' : past ? 'ok' : ended && place === at ? 'bad' : 'todo';
        return (
          <li key={name} className={now ? 'now' : past ? '' : 'later'}>
            <div className="k">
              <Glyph state={state} />
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

/** The commands of a spec's checks. */
export function commandsOf(checks: unknown): string[] {
  if (!Array.isArray(checks)) return [];
  return checks.map((check) =>
    typeof check === 'string' ? check : String(check.command ?? check.kind ?? ''),
  );
}
