import { Link } from '@tanstack/react-router';
import { Button } from '../parts/controls';
import { View } from '../shell/layout';

/** The view for an unknown address. */
export const Missing = ({ what = 'Page not found' }: { what?: string }) => (
  <View title="Not found">
    <div className="page">
      <div className="panel empty">
        <h2>{what}</h2>
        <p>It may be archived, or the address may be mistyped.</p>
        <p className="acts">
          <Link className="btn" to="/work">
            All work
          </Link>
          <Link className="btn" to="/search">
            Search
          </Link>
        </p>
      </div>
    </div>
  </View>
);

/** Stands where a view failed; everything around it goes on. */
export const Broken = ({ error }: { error: unknown }) => (
  <View title="Error">
    <div className="page">
      <div className="panel empty">
        <h2>This view failed</h2>
        <p className="mono small">{error instanceof Error ? error.message : String(error)}</p>
        <Button onClick={() => location.reload()}>Reload the page</Button>
      </div>
    </div>
  </View>
);
