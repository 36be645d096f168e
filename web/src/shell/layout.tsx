import { useQueryClient } from '@tanstack/react-query';
import { Link, Outlet, useNavigate } from '@tanstack/react-router';
import { type ReactNode, useEffect, useState } from 'react';
import { onUnauthorized } from '../api/client';
import { keepLive } from '../api/live';
import { retryNow } from '../api/sse';
import { preloadAll } from '../lazy';
import { Button } from '../parts/controls';
import { Dialog } from '../parts/dialog';
import { Glyph } from '../parts/glyph';
import { Icon } from '../parts/icon';
import { Toasts } from '../parts/toast';
import { KeyList } from './key_list';
import { type Keys, press, useKeys } from './keys';
import { useLink } from './link';
import { useNotifier } from './notify';
import { Palette } from './palette';
import { PLACES } from './places';
import { switchTheme } from './preferences';
import { keepReturnPath } from './return_path';
import { Scope, Sidebar, useNeeds } from './sidebar';

/** So long after the first view the rest of the page is loaded. */
const PRELOAD_AFTER_MS = 1500;

type Open = 'palette' | 'keys' | 'more' | null;

/** The frame around every view. */
export function Layout() {
  const queries = useQueryClient();
  const navigate = useNavigate();
  const [open, setOpen] = useState<Open>(null);
  useEffect(() => {
    const leave = onUnauthorized(() => {
      keepReturnPath();
      navigate({ to: '/login' });
    });
    const stop = keepLive(queries);
    return () => {
      leave();
      stop();
    };
  }, [queries, navigate]);
  useNotifier();
  useEffect(() => {
    const timer = setTimeout(preloadAll, PRELOAD_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  const places: Keys = Object.fromEntries(
    PLACES.filter(({ keys }) => keys.startsWith('g ')).map(({ keys, to }) => [
      keys,
      () => void navigate({ to }),
    ]),
  );
  useKeys({
    ...places,
    '/': () => setOpen('palette'),
    '?': () => setOpen('keys'),
    c: () => void navigate({ to: '/new' }),
  });
  return (
    <Toasts>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <Announcer />
      <div className="app">
        <Sidebar showKeys={() => setOpen('keys')} />
        <div className="main">
          <Outlet />
        </div>
        <TabBar open={setOpen} />
      </div>
      {open === 'palette' && <Palette close={() => setOpen(null)} showKeys={() => setOpen('keys')} />}
      {open === 'keys' && <KeyList close={() => setOpen(null)} />}
      {open === 'more' && <More close={() => setOpen(null)} />}
    </Toasts>
  );
}

/** The head of a view, and what the whole page has to say. */
export function View(props: { title: string; head?: ReactNode; end?: ReactNode; children: ReactNode }) {
  const needs = useNeeds().rows;
  useEffect(() => {
    document.title = `${needs > 0 ? `(${needs}) ` : ''}${props.title} · Kapelle`;
  }, [needs, props.title]);
  return (
    <>
      <header className="top">
        {props.head ?? <h1>{props.title}</h1>}
        {props.end ?? (
          <button type="button" className="find" onClick={() => press('/')}>
            <Icon name="search" />
            <span>Search or jump to…</span>
            <kbd>/</kbd>
          </button>
        )}
      </header>
      <Away />
      <main id="main">{props.children}</main>
    </>
  );
}

function Away() {
  const link = useLink();
  if (link.state !== 'away') return null;
  const since = new Date(link.since).toLocaleTimeString('en-GB');
  return (
    <div className="banner" role="alert">
      <Glyph state="bad" />
      <span>
        <b>Daemon unreachable.</b> What you see is from {since}. Agents go on without it; this page reconnects
        by itself.
      </span>
      <Button small onClick={retryNow}>
        Try now
      </Button>
    </div>
  );
}

function TabBar({ open }: { open: (what: Open) => void }) {
  const needs = useNeeds().rows;
  const current = (exact: boolean) => ({
    activeOptions: { exact, includeSearch: false },
    activeProps: { 'aria-current': 'page' as const },
  });
  return (
    <nav className="tabbar" aria-label="Views">
      <Link to="/" {...current(true)}>
        <Icon name="now" />
        Now{needs > 0 && <span className="n">{needs}</span>}
      </Link>
      <Link to="/work" {...current(false)}>
        <Icon name="work" />
        Work
      </Link>
      <Link to="/new" {...current(false)}>
        <Icon name="plus" />
        New
      </Link>
      <button type="button" onClick={() => open('palette')}>
        <Icon name="search" />
        Search
      </button>
      <button type="button" onClick={() => open('more')}>
        <Icon name="more" />
        More
      </button>
    </nav>
  );
}

/** The places that have no room among the tabs of a phone. */
const More = ({ close }: { close: () => void }) => (
  <Dialog title="More" close={close} className="sheet">
    <Scope chosen={close} />
    <nav aria-label="More views">
      {PLACES.filter(({ isTab }) => !isTab).map(({ to, icon, text }) => (
        <Link key={to} to={to} onClick={close}>
          <Icon name={icon} />
          {text}
        </Link>
      ))}
      <button type="button" onClick={switchTheme}>
        <Icon name="theme" />
        Theme
      </button>
    </nav>
  </Dialog>
);

/** Tells people who do not see the page when something new needs them. */
function Announcer() {
  const count = useNeeds().rows;
  const [text, setText] = useState('');
  useEffect(() => {
    const timer = setTimeout(() => setText(count ? `${count} need you.` : 'Nothing needs you.'), 5000);
    return () => clearTimeout(timer);
  }, [count]);
  return (
    <p className="vh" aria-live="polite">
      {text}
    </p>
  );
}
