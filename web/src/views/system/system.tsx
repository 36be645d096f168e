import { useNavigate, useParams } from '@tanstack/react-router';
import type { Agent } from '../../api/client';
import { api, ask } from '../../api/client';
import { useAction, useAgents, useAgentTest, useDaemon } from '../../api/queries';
import { span } from '../../model/format';
import type { State } from '../../model/work';
import { Button, Choices, Loading, near, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Table } from '../../parts/table';
import { Moment, Said } from '../../parts/text';
import { withCommand } from '../../shell/keys';
import { View as Frame } from '../../shell/layout';
import { useNotices } from '../../shell/notify';
import { switchTheme, usePreference } from '../../shell/preferences';
import { Events } from '../events';
import { Reset, usedOf } from '../usage/accounts';
import { Facts } from '../work_head';
import { Locks } from './locks';

type Tab = 'agents' | 'locks' | 'daemon' | 'activity' | 'settings';
const TABS: Record<Tab, () => React.ReactNode> = {
  agents: () => <Agents />,
  locks: () => <Locks />,
  daemon: () => <Daemon />,
  activity: () => <Events of={{}} />,
  settings: () => <Settings />,
};

export function View() {
  const { tab = 'agents' } = useParams({ from: '/inside/system/{-$tab}' });
  const navigate = useNavigate();
  const shown: Tab = tab in TABS ? (tab as Tab) : 'agents';
  return (
    <Frame title="System">
      <div className="page wide stack">
        <Choices<Tab>
          label="Part"
          className="fit"
          value={shown}
          choose={(value) => navigate({ to: '/system/{-$tab}', params: { tab: value } })}
          of={[
            { value: 'agents', label: 'Agents' },
            { value: 'locks', label: 'Locks' },
            { value: 'daemon', label: 'Daemon' },
            { value: 'activity', label: 'Activity' },
            { value: 'settings', label: 'Settings' },
          ]}
        />
        {TABS[shown]()}
      </div>
    </Frame>
  );
}

/** Settings of this browser and of the daemon. */
const Settings = () => (
  <>
    <ThisBrowser />
    <ThisDaemon />
  </>
);

function ThisBrowser() {
  const [on, change, problem] = useNotices();
  const [keys, keepKeys] = usePreference('keys', 'on');
  const leave = useAction(async () => {
    await ask(api.POST('/api/v1/logout'));
    location.assign('/login');
  });
  return (
    <section className="panel box stack">
      <header>
        <h2>This browser</h2>
      </header>
      <div>
        <label className="check">
          <input type="checkbox" checked={on} onChange={() => void change()} />
          Desktop notifications: questions, failures, finished runs, limits
        </label>
        {problem && <Problem error={new Error(problem)} />}
        <p className="hint">
          Needs an open tab. Webhooks and commands work without one: <span className="mono">[notify]</span> in
          your config.toml, then <span className="mono">kapelle notify test</span>.
        </p>
      </div>
      <div>
        <label className="check">
          <input
            type="checkbox"
            checked={keys !== 'off'}
            onChange={() => keepKeys(keys === 'off' ? 'on' : 'off')}
          />
          Keyboard shortcuts
        </label>
        <p className="hint">
          Turn off if you use speech input. {withCommand('K')} opens the search in any case.
        </p>
      </div>
      <div className="tbar">
        <Button onClick={switchTheme}>Theme</Button>
        <Button onClick={() => leave.mutate(undefined)}>Log out</Button>
      </div>
      <Problem error={leave.error} />
    </section>
  );
}

/** The daemon's settings for work. */
function ThisDaemon() {
  const daemon = useDaemon().data;
  const agents = useAgents().data;
  if (!daemon || !agents) return <Loading />;
  const usual = agents.find((agent) => agent.default);
  const ready = agents.filter((agent) => agent.installed && !agent.problem).map(({ name }) => name);
  return (
    <section className="panel box stack">
      <header>
        <h2>Work on this machine</h2>
      </header>
      <Facts
        facts={[
          ['Default agent', usual ? usual.name : 'none: every task must name its agent'],
          ['Default model', usual?.model ?? 'the agent’s own default'],
          ['Available agents', ready.join(', ') || 'no agent'],
          ['Parallel agents', `at most ${daemon.max_attempts}`],
          ['Home', <code key="h">{daemon.home}</code>],
        ]}
      />
      <p className="hint mt-3">
        <span className="mono">kapelle config show</span> shows every setting with its source,{' '}
        <span className="mono">kapelle config set limits.max_attempts 8</span> changes one, and a repository
        has its own in <span className="mono">.kapelle/config.toml</span>.
      </p>
    </section>
  );
}

function agentState(agent: Agent): State {
  if (agent.problem) return 'bad';
  if (agent.paused_until || agent.paused_reason) return 'limit';
  return 'ok';
}

function loginOf({ login }: Agent): string {
  if (!login.needed) return 'not required';
  if (login.source === 'none') return 'not logged in';
  return login.variable ? `${login.source}, ${login.variable}` : login.source;
}

function Agents() {
  const agents = useAgents(undefined, 60_000);
  if (agents.isPending) return <Loading lines={8} />;
  const installed = agents.data?.filter((agent) => agent.installed) ?? [];
  const missing = agents.data?.filter((agent) => !agent.installed) ?? [];
  return (
    <>
      <Problem error={agents.error} />
      <Table columns={['Agent', 'State', 'Program', 'Model', 'Login', '']}>
        {installed.map((agent) => (
          <AgentRow key={agent.name} agent={agent} />
        ))}
      </Table>
      {missing.length > 0 && (
        <section className="section">
          <header>
            <h2>Not installed</h2>
          </header>
          <dl className="panel absent">
            {missing.map((agent) => (
              <div key={agent.name}>
                <dt>
                  <Glyph state="todo" label={agent.status} />
                  {agent.name}
                </dt>
                <dd>
                  <Said className="mono">{(agent.hint ?? agent.problem ?? '').split(', or: ')[0] ?? ''}</Said>
                </dd>
              </div>
            ))}
          </dl>
        </section>
      )}
    </>
  );
}

function AgentRow({ agent }: { agent: Agent }) {
  const check = useAgentTest(agent.name);
  const tried = check.data;
  return (
    <tr>
      <td className="full">
        <span className="t strong name">
          <Glyph state={agentState(agent)} label={agent.status} />
          {agent.name}
          {agent.default && <span className="chip">default</span>}
        </span>
      </td>
      <td className="full">
        <Said>{agent.paused_reason ?? agent.problem ?? agent.status}</Said>
        {agent.hint && (
          <span className="hint block">
            <Said>{agent.hint}</Said>
          </span>
        )}
        {agent.paused_until && (
          <span className="hint block">
            until <Moment at={agent.paused_until} />
          </span>
        )}
        {agent.paused_models.map(({ model, until, reason }) => (
          <span key={model} className="hint block">
            {model}: <Said>{reason}</Said> until <Moment at={until} />
          </span>
        ))}
        {agent.windows.map((window) => (
          <span key={window.name} className={`block small ${near(window.used ?? 0) ? 'c-you' : 'faint'}`}>
            <Said>{window.name}</Said>: {usedOf(window)}, <Reset window={window} />
          </span>
        ))}
        {tried && (
          <span className={`block small ${tried.usable ? 'c-ok' : 'c-bad'}`}>
            <Said>
              {tried.usable
                ? `works, answered in ${span(tried.live?.duration_s ?? 0)}${tried.version ? `, ${tried.version}` : ''}`
                : (tried.problem ?? 'unusable')}
            </Said>
          </span>
        )}
        <Problem error={check.error} />
      </td>
      <td className="dim desk break">
        <code>{agent.installed}</code>
      </td>
      <td className="dim desk">{agent.model}</td>
      <td className="dim desk">{loginOf(agent)}</td>
      <td className="num">
        <Button small disabled={check.isPending} onClick={() => check.mutate(undefined)}>
          {check.isPending ? 'Testing…' : 'Test now'}
        </Button>
      </td>
    </tr>
  );
}

function Daemon() {
  const daemon = useDaemon();
  if (!daemon.data) return <Loading />;
  const {
    version,
    pid,
    started_at,
    home,
    url,
    database,
    running,
    max_attempts,
    queued,
    runs_under_way,
    held,
  } = daemon.data;
  return (
    <div className="panel box">
      <Facts
        facts={[
          ['Version', version],
          ['Process', pid],
          ['Started', <Moment key="s" at={started_at} />],
          ['Home', <code key="h">{home}</code>],
          ['Address', <code key="u">{url}</code>],
          ['Database', <code key="d">{database}</code>],
          ['At work', `${running} of ${max_attempts} agents`],
          ['Queued', queued],
          ['Runs', `${runs_under_way} active`],
          ...(held
            ? ([['Start blocked by', <Said key="x">{held}</Said>]] as [string, React.ReactNode][])
            : []),
        ]}
      />
    </div>
  );
}
