import { Link } from '@tanstack/react-router';
import type { Work } from '../../api/client';
import { type Sums, useSums } from '../../api/needs';
import { useActive, useAgents, useDaemon, useEnded } from '../../api/queries';
import { counted, grouped, inWords, nameOfPath, resultsLine } from '../../model/format';
import { price, priceOfSum } from '../../model/price';
import { asksYou, hasEnded, repositoryOf, stateOf } from '../../model/work';
import { Empty, Loading } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { Proofs } from '../../parts/proofs';
import { Moment, Said } from '../../parts/text';
import { View } from '../../shell/layout';
import { useScope } from '../../shell/preferences';
import { useNeeds } from '../../shell/sidebar';
import { isSeen } from '../marks';
import { WorkLink } from '../work_link';
import { AtWork, isAtWork } from './at_work';
import { Needs } from './needs';
import { Waiting } from './waiting';

const RESULTS = 8;

/** Now: what needs the person, active work, waiting work and results. */
export function Now() {
  const [project] = useScope();
  const active = useActive(project);
  const ended = useEnded(project);
  const needs = useNeeds();
  const running = active.work.filter(isAtWork);
  const waiting = active.work.filter(
    (work) => !hasEnded(work) && work.status !== 'running' && work.status !== 'paused' && !asksYou(work),
  );
  const loading = active.isPending || ended.isPending || needs.isPending;
  const first = !loading && active.work.length === 0 && ended.work.length === 0;
  return (
    <View title="Now">
      <div className="page">
        <Pulse needs={needs.rows} running={running.length} />
        {first ? (
          <FirstVisit />
        ) : (
          <div className="duo">
            <div>
              <section className="section bleed" aria-labelledby="h-needs">
                <header>
                  <h2 id="h-needs">Needs you</h2>
                  <span className="faint">
                    {needs.rows || ''}
                    {needs.total > needs.rows && `, from ${grouped(needs.total)} items`}
                  </span>
                  {needs.rows > 1 && (
                    <span className="end faint small">
                      <kbd>j</kbd> <kbd>k</kbd>
                    </span>
                  )}
                </header>
                {loading ? <Loading /> : <Needs {...needs} running={running.length} />}
              </section>
              <Results ended={ended.work} />
            </div>
            <div>
              {loading ? <Loading lines={6} /> : <AtWork work={active.work} />}
              {waiting.length > 0 && <Waiting work={waiting} all={active.work} unlisted={active.unlisted} />}
            </div>
          </div>
        )}
      </div>
    </View>
  );
}

const today = (): string => new Date(new Date().setHours(0, 0, 0, 0)).toISOString();

function Pulse({ needs, running }: { needs: number; running: number }) {
  const [project] = useScope();
  const daemon = useDaemon();
  const sums = useSums(today(), project).data;
  const need = needs
    ? `${inWords(needs)} ${needs === 1 ? 'thing needs' : 'things need'} you.`
    : 'Nothing needs you.';
  const agents = `${inWords(running)} ${running === 1 ? 'agent is' : 'agents are'} at work.`;
  const cost = sums && priceOfSum(sums.cost);
  const most = daemon.data?.max_attempts ?? 0;
  const taken = daemon.data?.running ?? running;
  return (
    <div className="pulse">
      <p className="say">
        {need} {agents}
        <small>
          {sums && totals(sums)}
          {cost && cost.usd !== null && <span className="sep">{price(cost)} today</span>}
        </small>
      </p>
      {most > 0 && <Seats taken={taken} most={most} held={daemon.data?.held ?? null} />}
    </div>
  );
}

/** The totals of today, counted by the daemon over all work. */
function totals({ completed, verified, merged, failed, cancelled, started }: Sums): string {
  if (completed + failed + cancelled + merged === 0) {
    return started > 0 ? `${grouped(started)} started today, no results yet` : 'No results yet today';
  }
  return resultsLine({ done: completed, verified, failed, cancelled, merged }, ' today');
}

const MOST_SEATS = 32;

function Seats({ taken, most, held }: { taken: number; most: number; held: string | null }) {
  return (
    <div className="seats">
      {most <= MOST_SEATS && (
        <div className="strip" role="img" aria-label={`${taken} of ${most} agents at work`}>
          {Array.from({ length: most }, (_, seat) => (
            <i key={seat} className={seat < taken ? '' : 'free'} />
          ))}
        </div>
      )}
      <div className="cap">
        <span>
          {taken} of {counted(most, 'agent')} at work
        </span>
        {held && <Said>{held}</Said>}
      </div>
    </div>
  );
}

function Results({ ended }: { ended: Work[] }) {
  if (ended.length === 0) return null;
  const newest = [...ended].sort((a, b) => (b.ended_at ?? '').localeCompare(a.ended_at ?? ''));
  return (
    <section className="section bleed after-work" aria-labelledby="h-results">
      <header>
        <h2 id="h-results">Results</h2>
        <span className="end">
          <Link className="btn quiet sm" to="/report">
            Report
          </Link>
          <Link className="btn quiet sm" to="/work">
            All work
          </Link>
        </span>
      </header>
      <ul className="results panel">
        {newest.slice(0, RESULTS).map((work) => (
          <li key={work.id} className={isSeen(work) ? 'seen' : ''}>
            <Glyph state={stateOf(work)} />
            <div>
              <WorkLink work={work} className="cut">
                <Said>{work.title}</Said>
              </WorkLink>
              <span className="proofs">
                <span className="faint" title={repositoryOf(work)}>
                  <Said>{nameOfPath(repositoryOf(work))}</Said>
                </span>
                <Proofs work={work} />
              </span>
            </div>
            <span className="age">{work.ended_at && <Moment at={work.ended_at} />}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The agent without a model: it follows a playbook and does no real work. */
const REHEARSAL = 'rehearsal';

/** Which agents can be used, for a first visit. */
function agentsLine(usual: string | undefined, real: string[]): string {
  if (usual) return `The default agent is ${usual}.`;
  if (real.length > 0) return `${real.join(', ')} can be used here. Set a default with kapelle init.`;
  return 'No coding agent is set up yet: run kapelle init. Until then, try rehearsal, an agent without a model.';
}

function FirstVisit() {
  const agents = useAgents().data ?? [];
  const usable = agents.filter((agent) => agent.installed && !agent.problem);
  const real = usable.filter(({ name }) => name !== REHEARSAL).map(({ name }) => name);
  const usual = usable.find((agent) => agent.default)?.name;
  const who = usual ?? real[0] ?? usable[0]?.name;
  const named = usual ? '' : ` --agent ${who}`;
  return (
    <div className="mt-5 max-w-xl">
      <Empty title="Give the first agent some work">
        <p>
          {agentsLine(usual, real)} {who !== REHEARSAL && 'A check makes the result trustworthy.'}
        </p>
        {who && (
          <p className="cmd">
            {who === REHEARSAL
              ? `kapelle run "Say hello"${named}`
              : `kapelle run "Make the tests pass" --check "make test"${named}`}
          </p>
        )}
        <Link className="btn primary" to="/new">
          New task<kbd>c</kbd>
        </Link>
      </Empty>
    </div>
  );
}
