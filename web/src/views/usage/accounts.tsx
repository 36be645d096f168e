import type { Agent } from '../../api/client';
import { useAgents } from '../../api/queries';
import { near, share } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';

type Window = Agent['windows'][number];

/** The used share of a limit, if the provider reports it. */
export const usedOf = ({ used }: Window): string =>
  used === null ? 'share unknown' : `${Math.round(used * 100)} % used`;

export const Reset = ({ window }: { window: Window }) => {
  if (!window.resets_at) return 'reset unknown';
  const over = Date.parse(window.resets_at) <= Date.now();
  return (
    <>
      {over ? 'was reset' : 'resets'} <Moment at={window.resets_at} />
    </>
  );
};

/** The limits that providers report, and the paused models. */
export function Accounts() {
  const agents = (useAgents(undefined, 60_000).data ?? []).filter((agent) => agent.installed);
  const rows = agents.flatMap((agent) => [
    ...agent.windows.map((window) => (
      <WindowRow key={`${agent.name} ${window.name}`} {...{ agent, window }} />
    )),
    ...pausesOf(agent).map((pause) => (
      <PauseRow key={`${agent.name} ${pause.model}`} {...{ agent, pause }} />
    )),
  ]);
  return (
    <section className="section">
      <header>
        <h2>Accounts</h2>
      </header>
      {rows.length > 0 ? (
        <div className="panel">
          <table className="table">
            <tbody>{rows}</tbody>
          </table>
        </div>
      ) : (
        <p className="panel box faint">
          No provider has reported limits yet. Claude Code and Codex report them with a subscription.
        </p>
      )}
    </section>
  );
}

function WindowRow({ agent, window }: { agent: Agent; window: Window }) {
  return (
    <tr>
      <td className="strong">{agent.name}</td>
      <td>
        <Said>{window.name}</Said>
      </td>
      <td>
        {window.used === null ? (
          <span className="faint">{usedOf(window)}</span>
        ) : (
          <span className="window">
            <span className={`bar ${near(window.used) ? 'near' : ''}`} style={share(window.used)}>
              <i />
            </span>
            {usedOf(window)}
          </span>
        )}
      </td>
      <td className="num dim">
        <Reset window={window} />
      </td>
    </tr>
  );
}

interface Pause {
  model: string;
  until: string;
  reason: string;
}

const pausesOf = (agent: Agent): Pause[] => [
  ...(agent.paused_until
    ? [{ model: '', until: agent.paused_until, reason: agent.paused_reason ?? 'paused' }]
    : []),
  ...agent.paused_models,
];

const PauseRow = ({ agent, pause }: { agent: Agent; pause: Pause }) => (
  <tr>
    <td className="strong">
      {agent.name} {pause.model && <span className="dim">{pause.model}</span>}
    </td>
    <td colSpan={2}>
      <span className="tag">
        <Glyph state="limit" />
        <Said>{pause.reason}</Said>
      </span>
    </td>
    <td className="num">
      paused until <Moment at={pause.until} />
    </td>
  </tr>
);
